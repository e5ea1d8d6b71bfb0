// Forward and backward of the GPT, plain or as a sharded model whose parameters stay on the rank. Arguments: plain or
// resident, and how many times; counted by key.sh. The rank is alone, so that nothing but the watching of parameters is
// added.
#include <cstdio>
#include <memory>

#include "models.h"
#include "parallel/sharded_model.h"

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string way = argc > 1 ? argv[1] : "plain";
  const int steps = argc > 2 ? std::stoi(argv[2]) : 1;
  torch::manual_seed(0);
  bench::GPT net;
  const auto text = bench::make_input("gpt-9m", 0).slice(0, 0, 1).slice(1, 0, 129);
  std::unique_ptr<muster::parallel::ShardedModel> sharded;
  if (way == "resident")
    sharded = std::make_unique<muster::parallel::ShardedModel>(
        *net, muster::comm::Communicator(),
        muster::parallel::ShardedOptions{.stage = muster::parallel::ShardStage::gradients});
  torch::Tensor loss;
  for (int i = 0; i < steps; ++i) {
    if (sharded) sharded->enter_forward();
    loss = net->forward(text);
    if (sharded) sharded->leave_forward();
    if (sharded) sharded->before_backward();
    loss.backward();
    if (sharded) sharded->after_backward();
  }
  std::printf("loss %.9g\n", loss.item<double>());
}
