// The programs of restarts.md, compiled and run by the tests. Run by `muster run --max-restarts 2`, they fail twice.
//   restarts FOLDER [trainer]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <muster/accelerator.h>
#include <muster/cluster/cluster.h>
#include <muster/trainer.h>
#include <torch/torch.h>

int failed = 0, passed = 0;

void expect(const char* what, bool holds) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED %s\n", what);
}

struct Numbers {
  at::Tensor get(int64_t i) const { return torch::full({4}, 0.1 * static_cast<double>(i)); }
  int64_t size() const { return 48; }
};

/// Kills this rank at the `step`-th step of the first two starts: a rank dies, and so does its job.
struct Accident {
  int64_t step = -1, steps = 0;
  void may_happen() {
    const auto cluster = muster::read_cluster_environment();
    if (++steps == step && cluster.restart_count < 2 && cluster.rank == cluster.restart_count % cluster.world_size)
      std::_Exit(3);
  }
};

double train(const std::string& runs, Accident accident) {
  muster::Accelerator accelerator(
      {.project = {.automatic_checkpoint_naming = true, .directory = runs, .total_limit = 2}});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.05),
                          muster::DataLoader(Numbers(), {.batch_size = 2, .shuffle = true}));
  muster::resume(accelerator);  // false at the first start: there is no checkpoint yet
  int64_t step = 0;
  for ([[maybe_unused]] auto epoch : accelerator.epochs(3)) {
    for (auto& batch : batches) {
      const auto loss = (model(batch) - 1).pow(2).mean();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      if (++step % 3 == 0) accelerator.save_state();
      accident.may_happen();
    }
  }
  return net->weight.sum().item<double>();
}

struct Lit : muster::TrainerModule {
  explicit Lit(Accident accident) : accident(accident) {}
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return (net(batch) - 1).pow(2).mean(); }
  void on_train_batch_end(const muster::StepOutput&, torch::Tensor&, int64_t) { accident.may_happen(); }
  muster::Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 0.05); }
  Accident accident;
  torch::nn::Linear net = register_module("net", torch::nn::Linear(4, 1));
};

double fit(const std::string& runs, Accident accident) {
  const auto module = std::make_shared<Lit>(accident);
  muster::DataLoader batches(Numbers(), {.batch_size = 2, .seed = 1, .shuffle = true});
  const auto saver = std::make_shared<muster::ModelCheckpoint>(
      muster::ModelCheckpointOptions{.dirpath = runs, .every_n_train_steps = 3});
  muster::Trainer trainer({.callbacks = {saver}, .default_root_dir = runs, .max_epochs = 3});
  trainer.fit(module, batches);  // resumes by itself once the ranks were started again
  return module->net->weight.sum().item<double>();
}

int main(int count, char** words) {
  const std::filesystem::path folder = words[1];
  const bool by_trainer = count > 2;
  const auto cluster = muster::read_cluster_environment();
  if (cluster.is_main() && cluster.restart_count == 0) std::filesystem::remove_all(folder);
  const auto run = [&](const char* name, int64_t step) {
    torch::manual_seed(1);
    return by_trainer ? fit(folder / name, {.step = step}) : train(folder / name, {.step = step});
  };
  const auto in_parts = run("parts", 7);
  expect("two failures change nothing", in_parts == run("whole", -1));
  if (cluster.is_main()) std::filesystem::remove_all(folder);
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed;
}
