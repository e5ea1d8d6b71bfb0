#include <cstdio>
#include <string>

#include "schedule/schedule_cases.h"

// Prints, for each schedule, a line with its name and one with what every step sets, in hexadecimal.

namespace {

void print_values(const torch::optim::Optimizer& optimizer) {
  for (const double value : muster::schedule::testing::rates_and_momenta(optimizer)) std::printf("%a ", value);
}

}  // namespace

int main() {
  using namespace muster::schedule::testing;
  for (const auto& [name, kind, schedule] : schedule_cases()) {
    const auto optimizer = scheduled_optimizer(kind);
    const auto scheduler = muster::make_scheduler(*optimizer, schedule);
    std::printf("%s\n", name.c_str());
    print_values(*optimizer);
    for (int step = 0; step < kScheduleSteps; ++step) {
      scheduler->step();
      print_values(*optimizer);
    }
    std::printf("\n");
  }
  for (const auto& [name, options] : plateau_cases()) {
    const auto optimizer = scheduled_optimizer("sgd");
    muster::ReduceLROnPlateau scheduler(*optimizer, options);
    std::printf("%s\n", name.c_str());
    print_values(*optimizer);
    for (int step = 0; step < kScheduleSteps; ++step) {
      scheduler.step(plateau_metric(step));
      print_values(*optimizer);
    }
    std::printf("\n");
  }
}
