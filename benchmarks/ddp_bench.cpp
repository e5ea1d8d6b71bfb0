// Steps under DDP, one process per rank, through the Accelerator door. Argument: gpt-9m or wide-mlp.
#include "models.h"
#include "protocol.h"

#include "muster/accelerator.h"

namespace {

template <class Net>
int run(const std::string& name, int steps, int warm_up) {
  muster::Accelerator accelerator;
  torch::manual_seed(0);
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-5)));
  const auto batch = bench::make_input(name, static_cast<int>(accelerator.process_index()));
  const auto step = [&] {
    optimizer.zero_grad();
    auto loss = model(batch);
    accelerator.backward(loss);
    optimizer.step();
    return loss;
  };
  for (int i = 0; i < warm_up; ++i) step();
  return bench::serve([&](const std::string&) -> bench::Measured {
    accelerator.wait_for_everyone();
    torch::Tensor loss;
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < steps; ++i) loss = step();
    });
    return {.value = seconds / steps * 1e3, .check = loss.item<double>()};
  });
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string name = argc > 1 ? argv[1] : "gpt-9m";
  return name == "gpt-9m" ? run<bench::GPT>(name, 3, 2) : run<bench::Wide>(name, 10, 5);
}
