// The program of slurm.md.
#include <cstdio>
#include <cstdlib>

#include <muster/trainer.h>
#include <torch/torch.h>

using Example = torch::data::Example<>;

struct Net : muster::TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 2));
  torch::Tensor training_step(Example& batch, int64_t) {
    return torch::nn::functional::cross_entropy(layer(batch.data), batch.target);
  }
  muster::Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};

int main() {
  torch::manual_seed(1);
  std::vector<Example> examples;
  for (int64_t i = 0; i < 64; ++i) examples.emplace_back(torch::randn(4), torch::tensor(i % 2));
  Net net;
  muster::DataLoader loader(examples, {.batch_size = 8, .shuffle = true});

  muster::Trainer trainer({.default_root_dir = "runs/digits", .max_epochs = 3});
  trainer.fit(net, loader, {.ckpt_path = "hpc"});

  if (trainer.current_epoch() != 3) return EXIT_FAILURE;
  trainer.print("1 passed, 0 failed, 0 skipped");
}
