#include <cstdio>
#include <map>
#include <string>

#include "optim/averaging_cases.h"

// Prints, for each way to average, a line with its name and one with all averages after each update, in hexadecimal.

int main() {
  using namespace muster::optim::testing;
  for (const auto& [name, options] : averaging_cases()) {
    Normed net;
    muster::AveragedModel average(*net, options);
    std::printf("%s\n", name.c_str());
    for (int n = 0; n < kAveragingSteps; ++n) {
      set_values(*net, n);
      average.update();
      const auto state = average.state_dict();
      for (const auto& [key, value] : std::map<std::string, muster::State>(state.map().begin(), state.map().end())) {
        if (key == "n_averaged") continue;
        const auto flat = value.tensor().to(torch::kDouble).contiguous().view(-1);
        for (int64_t i = 0; i < flat.numel(); ++i) std::printf("%a ", flat[i].item<double>());
      }
    }
    std::printf("\n");
  }
}
