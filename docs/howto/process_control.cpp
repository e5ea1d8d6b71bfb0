// The code of process_control.md.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <muster/fabric.h>
#include <torch/torch.h>

struct Tables {};
static Tables load_tables() { return {}; }

struct Watcher : muster::FabricCallback {
  void on_after_optimizer_step(muster::Optimizer&) override { ++steps; }
  void on_epoch_end(int epoch) { last_epoch = epoch; }
  int steps = 0, last_epoch = -1;
};

static void turns(muster::Accelerator& accelerator) {
  auto report = accelerator.on_main_process([](double loss) { std::printf("loss %.1f\n", loss); });
  report(0.5);
  const Tables tables = accelerator.main_process_first([] { return load_tables(); });  // downloads once
  (void)tables;
  const auto log = accelerator.logger("train");
  log.info("once for all ranks, at step {}", 3);
  log.everywhere().debug("from each rank");
}

static void train(muster::Accelerator& accelerator) {
  accelerator.catch_signals();
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int step = 0; step < 100; ++step) {
    const auto loss = model(torch::ones({2, 4})).sum();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (accelerator.signal_received() != 0) break;  // all ranks leave here, at the same step
    if (loss.item<double>() < -1) accelerator.set_trigger();
    if (accelerator.check_trigger()) break;  // any rank may have set it
    const auto votes = muster::agreed_votes(accelerator);
    if (votes.signal != 0 || votes.trigger) break;
  }
  std::string folder;
  if (accelerator.is_main_process()) folder = muster::new_temporary_folder("muster-howto-");
  folder = accelerator.broadcast_object(folder);  // a name that nobody can foresee
  accelerator.save_model(model, folder);
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::filesystem::remove_all(folder);
}

static void search(muster::Accelerator& accelerator) {
  const auto size = accelerator.find_executable_batch_size(
      [&](int64_t batch_size) {
        torch::nn::Linear net(4, 1);
        auto model = accelerator.prepare(net);
        accelerator.backward(model(torch::ones({batch_size, 4})).sum());
      },
      {.starting_batch_size = 256});
  if (size != 256) std::abort();
}

static void callbacks() {
  auto watcher = std::make_shared<Watcher>();
  muster::Fabric fabric({.callbacks = {watcher}});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 0.1));
  fabric.backward(model(torch::ones({2, 4})).sum());
  optimizer.step();
  fabric.call(&Watcher::on_epoch_end, 7);
  if (watcher->steps != 1 || watcher->last_epoch != 7) std::abort();
  fabric.free_memory(model, optimizer);
}

int main() {
  {
    muster::Accelerator accelerator;
    turns(accelerator);
    train(accelerator);
    search(accelerator);
  }
  callbacks();
  std::puts("1 passed, 0 failed, 0 skipped");
}
