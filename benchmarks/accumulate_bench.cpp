// Windows of four micro-batches under DDP, one process per rank. Argument: gpt-9m or wide-mlp.
// A window must cost one reduction: the rank counts collectives, and a figure with more of them counts for nothing.
#include <atomic>

#include "models.h"
#include "muster/comm/communicator.h"
#include "muster/runtime.h"
#include "muster/runtime/options.h"
#include "protocol.h"

namespace {

constexpr int kMicroBatches = 4;

template <class Net>
int run(const std::string& name, int windows, int warm_up) {
  // The APIs hide the group, which tells what is sent.
  muster::Runtime runtime(muster::runtime::accelerate({.gradient_accumulation_steps = kMicroBatches}));
  torch::manual_seed(0);
  Net net;
  auto [model, optimizer] =
      runtime.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-5)));
  const auto batch = bench::make_input(name, runtime.rank());
  std::atomic<int64_t> bytes{0};
  runtime.group().observe([&](const muster::comm::OperationEvent& event) { bytes += event.bytes; });
  int64_t gradient_bytes = 0;
  for (const auto& parameter : net->parameters()) gradient_bytes += static_cast<int64_t>(parameter.nbytes());
  torch::Tensor loss;
  const auto window = [&] {
    for (int i = 0; i < kMicroBatches; ++i) {
      auto scope = runtime.accumulate(model);
      loss = model(batch);
      runtime.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  for (int i = 0; i < warm_up; ++i) window();
  return bench::serve([&](const std::string&) -> bench::Measured {
    runtime.barrier();
    bytes = 0;
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < windows; ++i) window();
    });
    // Padding and flags make a reduction a little longer than its gradients, never twice as long.
    const bool once =
        runtime.world_size() == 1 || (bytes >= gradient_bytes * windows && bytes < gradient_bytes * windows * 5 / 4);
    return {.value = seconds / windows * 1e3, .check = loss.item<double>(), .verified = once};
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "gpt-9m";
  return name == "gpt-9m" ? run<bench::GPT>(name, 1, 1) : run<bench::Wide>(name, 4, 2);
}
