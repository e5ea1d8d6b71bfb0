// The job that slurm_test.py starts under SLURM: slurm_job FOLDER wait|go
//
// Trains 12 steps from the newest "hpc" checkpoint. With "wait", a job that was not queued again yet waits for SIGUSR1
// in step 3 and for SIGTERM in step 5. At the end rank 0 prints the steps that it made and the weights.
#include <semaphore.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <muster/data/loader.h>
#include <muster/trainer.h>
#include <torch/torch.h>

namespace {

using Example = torch::data::Example<>;

sem_t received;

/// The Trainer calls the handlers that the program had.
void on_signal(int) { sem_post(&received); }

auto numbers() {
  std::vector<Example> all;
  for (int64_t i = 0; i < 96; ++i)
    all.emplace_back(torch::sin(torch::arange(4, torch::kFloat) * (i + 1)), torch::tensor(i % 2));
  return muster::DataLoader(all, {.batch_size = 4, .seed = 1, .shuffle = true});
}

struct Net : muster::TrainerModule {
  bool waits = false;
  std::string steps;
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 2));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.3));

  torch::Tensor training_step(Example& batch, int64_t) {
    const auto step = global_step();
    steps += " " + std::to_string(step);
    if (waits && (step == 3 || step == 5)) wait(step);
    return torch::nn::functional::cross_entropy(layer(dropout(batch.data)), batch.target);
  }
  void wait(int64_t step) {
    std::printf("rank %d waits in step %d\n", trainer().runtime().rank(), static_cast<int>(step));
    std::fflush(stdout);
    while (sem_wait(&received) != 0) {}
  }
  muster::Optimizers configure_optimizers() override {
    return torch::optim::Adam(parameters(), torch::optim::AdamOptions(0.1));
  }
};

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  sem_init(&received, 0, 0);
  std::signal(SIGUSR1, on_signal);
  std::signal(SIGTERM, on_signal);
  torch::manual_seed(1);
  Net net;
  net.waits = std::string_view(words[2]) == "wait" && !std::getenv("SLURM_RESTART_COUNT");
  muster::Trainer trainer(
      {.default_root_dir = words[1], .enable_checkpointing = false, .enable_progress_bar = false, .max_steps = 12});
  auto loader = numbers();
  trainer.fit(net, loader, {.ckpt_path = "hpc"});
  if (trainer.runtime().rank() != 0) return 0;
  std::printf("steps%s\nweights", net.steps.c_str());
  for (const auto& parameter : net.parameters())
    for (int64_t i = 0; i < parameter.numel(); ++i)
      std::printf(" %a", static_cast<double>(parameter.flatten()[i].item<float>()));
  std::printf("\n");
}
