// The programs of state.md, compiled and run by the tests.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <muster/fabric.h>
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

struct Best {
  double loss = 1e9;
  muster::State state_dict() const { return muster::State::Map{{"loss", loss}}; }
  void load_state_dict(const muster::State& state) { loss = state.at("loss").number(); }
};

/// Trains three epochs, or up to a batch at which it is interrupted; goes on where the last call ended.
double train(const std::string& runs, int stop_after) {
  muster::Accelerator accelerator(
      {.gradient_accumulation_steps = 2,
       .project = {.automatic_checkpoint_naming = true, .directory = runs, .total_limit = 2}});
  torch::nn::Linear net(4, 1);
  torch::optim::AdamW adam(net->parameters(), 0.05);
  auto [model, optimizer, scheduler, batches] =
      accelerator.prepare(net, adam, muster::StepLR(adam, {.step_size = 4}),
                          muster::DataLoader(Numbers(), {.batch_size = 4, .shuffle = true}));
  Best best;
  accelerator.register_for_checkpointing(best);

  if (std::filesystem::exists(runs + "/checkpoints")) accelerator.load_state();
  int seen = 0;
  for ([[maybe_unused]] auto epoch : accelerator.epochs(3)) {
    for (auto& batch : batches) {
      auto window = accelerator.accumulate(model);
      auto loss = (model(batch) - 1).pow(2).mean();
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      best.loss = std::min(best.loss, loss.item<double>());
      if (++seen == stop_after) {
        accelerator.save_state();
        return 0;
      }
    }
  }
  return net->weight.sum().item<double>() + best.loss;
}

void by_name(const std::string& folder) {
  muster::Fabric fabric;
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 0.1));
  int64_t epoch = 5;
  fabric.save(folder, {{"model", model}, {"optimizer", optimizer}, {"epoch", epoch}, {"note", "after warm-up"}});

  epoch = 0;
  auto rest = fabric.load(folder, {{"model", model}, {"optimizer", optimizer}, {"epoch", epoch}});
  expect("by name", epoch == 5 && rest.at("note").text() == "after warm-up");
}

int main() {
  const auto folder = muster::new_temporary_folder("muster-howto-");
  torch::manual_seed(1);
  const auto whole = train(folder / "whole", -1);
  torch::manual_seed(1);
  train(folder / "parts", 5);
  torch::manual_seed(99);  // another program knows nothing of the first one's numbers
  train(folder / "parts", 20);
  torch::manual_seed(100);
  expect("to the bit", train(folder / "parts", -1) == whole);
  by_name(folder / "named");
  std::filesystem::remove_all(folder);
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed;
}
