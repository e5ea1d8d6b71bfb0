// Steps of a GPT whose blocks' activations are made again in backward, through the Accelerator API, one process per
// rank. Arguments: a strategy; gpt-9m or gpt-512.
// Cases: "memory..." gives the peak of a rank's memory in MiB, "kept..." the milliseconds of a step that keeps all
// activations, "batch" the largest batch whose step takes kAllowed more than the model; any other the milliseconds of
// a step that makes them again.
#include <sys/resource.h>

#include "memory.h"
#include "models.h"
#include "muster/accelerator.h"
#include "protocol.h"

namespace {

constexpr double kMiB = 1 << 20;
constexpr int kSteps = 2, kWarmUp = 2;
constexpr double kAllowed = 512 * kMiB;  // as the peer has it

/// A model that takes steps with AdamW.
class Training {
 public:
  Training(const std::string& strategy, const std::string& name, bool recompute)
      : accelerator_(
            {.recompute = {.blocks = recompute ? std::vector<std::string>{"Block"} : std::vector<std::string>()},
             .strategy = strategy.c_str()}),
        shape_(name == "gpt-512" ? bench::kGPT512 : bench::kGPT9M) {
    torch::manual_seed(0);
    bench::GPT net(shape_);
    std::tie(model_, optimizer_) =
        accelerator_.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-5)));
    torch::manual_seed(100 + static_cast<int>(accelerator_.process_index()));
    batch_ = bench::make_text(shape_, 4);
    for (int i = 0; i < kWarmUp; ++i) step();
  }

  torch::Tensor step() { return step(batch_); }
  torch::Tensor step(const torch::Tensor& batch) {
    optimizer_.zero_grad();
    auto loss = model_(batch);
    accelerator_.backward(loss);
    optimizer_.step();
    return loss;
  }
  /// Whether a step on so many samples finds the memory that it needs.
  bool takes(int64_t samples) {
    try {
      step(bench::make_text(shape_, samples));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  void meet() { accelerator_.wait_for_everyone(); }

 private:
  muster::Accelerator accelerator_;
  bench::GPTShape shape_;
  muster::Model<bench::GPTImpl> model_;
  muster::Optimizer optimizer_;
  torch::Tensor batch_;
};

double largest_batch(Training& training) {
  rlimit before{};
  ::getrlimit(RLIMIT_DATA, &before);
  const rlimit limited{static_cast<rlim_t>(bench::status_bytes("VmData") + kAllowed), before.rlim_max};
  ::setrlimit(RLIMIT_DATA, &limited);
  int64_t fits = 4, fails = 8;
  for (; training.takes(fails); fails *= 2) fits = fails;
  while (fails - fits > 1) {
    const auto middle = (fits + fails) / 2;
    (training.takes(middle) ? fits : fails) = middle;
  }
  ::setrlimit(RLIMIT_DATA, &before);
  return static_cast<double>(fits);
}

}  // namespace

int main(int, char** argv) {
  const std::string strategy = argv[1], name = argv[2];
  const double before = bench::resident_bytes();
  std::unique_ptr<Training> training;
  bool kept = false;
  return bench::serve([&](const std::string& asked) -> bench::Measured {
    if (const bool keep = asked.starts_with("kept"); !training || keep != kept) {
      training.reset();
      training = std::make_unique<Training>(strategy, name, !keep);
      kept = keep;
    }
    training->meet();
    bench::reset_peak();
    torch::Tensor loss;
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < kSteps; ++i) loss = training->step();
    });
    const double check = loss.item<double>();
    if (asked.starts_with("batch")) return {.value = largest_batch(*training), .check = check};
    if (asked.find("memory") != std::string::npos)
      return {.value = (bench::peak_bytes() - before) / kMiB, .check = check};
    return {.value = seconds / kSteps * 1e3, .check = check};
  });
}
