// Steps where optimizer state, gradients or parameters are sharded over ranks, one process per rank, through the
// Accelerator API. Arguments: a strategy; gpt-9m, wide-mlp or deep-mlp. Cases: "memory..." gives the peak of a rank's
// memory in MiB, "formula..." what it should be; any other the milliseconds of a step.
#include "memory.h"
#include "models.h"
#include "muster/accelerator.h"
#include "protocol.h"

namespace {

constexpr double kMiB = 1 << 20;

/// What the strategy keeps per parameter, in bytes: value, gradient and AdamW's two averages, all float32.
double bytes_per_parameter(const std::string& strategy, double ranks) {
  if (strategy == "fsdp" || strategy == "zero3") return 16 / ranks;
  if (strategy == "zero2") return 4 + 12 / ranks;
  if (strategy == "zero1") return 8 + 8 / ranks;
  return 16;
}

template <class Net>
int run(const std::string& strategy, const std::string& name, int steps, int warm_up) {
  muster::Accelerator accelerator({.strategy = strategy.c_str()});
  const double before = bench::resident_bytes();
  torch::manual_seed(0);
  Net net;
  int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-5)));
  const auto batch = bench::make_input(name, static_cast<int>(accelerator.process_index()));
  const auto step = [&] {
    optimizer.zero_grad();
    auto loss = model(batch);
    accelerator.backward(loss);
    optimizer.step();
    return loss;
  };
  for (int i = 0; i < warm_up; ++i) step();
  return bench::serve([&](const std::string& asked) -> bench::Measured {
    accelerator.wait_for_everyone();
    bench::reset_peak();
    torch::Tensor loss;
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < steps; ++i) loss = step();
    });
    const double check = loss.item<double>();
    if (asked.starts_with("memory")) return {.value = (bench::peak_bytes() - before) / kMiB, .check = check};
    if (asked.starts_with("formula"))
      return {.value = static_cast<double>(count) * bytes_per_parameter(strategy, accelerator.num_processes()) / kMiB,
              .check = check};
    return {.value = seconds / steps * 1e3, .check = check};
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string strategy = argc > 1 ? argv[1] : "fsdp", name = argc > 2 ? argv[2] : "gpt-9m";
  if (name == "deep-mlp") return run<bench::Deep>(strategy, name, 2, 2);
  return name == "gpt-9m" ? run<bench::GPT>(strategy, name, 2, 2) : run<bench::Wide>(strategy, name, 4, 3);
}
