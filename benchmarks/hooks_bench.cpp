// Steps of a replicated model under a communication hook, one process per rank. Arguments: gpt-9m or wide-mlp, the
// hook's name, and the columns that PowerSGD keeps. Cases: "MODEL bytes" (what one rank hands over per step) and "MODEL
// time".
#include <atomic>

#include "models.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/rendezvous.h"
#include "optim/fused.h"
#include "parallel/replicated_model.h"
#include "protocol.h"

namespace {

template <class Net>
int run(const std::string& name, const std::string& hook, int64_t columns, int steps, int warm_up) {
  const auto group = muster::comm::connect(muster::read_cluster_environment());
  torch::manual_seed(0);
  Net net;
  muster::parallel::DdpOptions options;
  options.comm_hook = hook;
  options.power_sgd.rank = columns;
  options.power_sgd.start_iteration = warm_up;
  muster::parallel::ReplicatedModel replicated(*net, group, options);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-5));
  muster::optim::FusedStep optimizer(adamw, {&replicated});
  std::atomic<int64_t> bytes = 0;
  group.observe([&bytes](const muster::comm::OperationEvent& event) { bytes += event.bytes; });
  const auto batch = bench::make_input(name, group.rank());
  const auto step = [&] {
    optimizer.zero_grad();
    replicated.enter_forward();
    auto loss = net(batch);
    replicated.leave_forward();
    replicated.before_backward();
    loss.backward();
    replicated.after_backward();
    optimizer.step();
    return loss;
  };
  for (int i = 0; i < warm_up; ++i) step();
  return bench::serve([&](const std::string& asked) -> bench::Measured {
    group.barrier();
    bytes = 0;
    torch::Tensor loss;
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < steps; ++i) loss = step();
    });
    const bool time = asked.ends_with("time");
    return {.value = time ? seconds / steps * 1e3 : static_cast<double>(bytes) / steps / 1e6,
            .check = loss.item<double>()};
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "gpt-9m", hook = argc > 2 ? argv[2] : "none";
  const int64_t columns = argc > 3 ? std::stoll(argv[3]) : 1;
  return name == "gpt-9m" ? run<bench::GPT>(name, hook, columns, 2, 2) : run<bench::Wide>(name, hook, columns, 6, 5);
}
