#include <chrono>
#include <filesystem>
#include <string>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;

int main() {
  muster::Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  std::vector<std::pair<torch::Tensor, torch::Tensor>> data;
  for (int i = 0; i < 256; ++i) data.emplace_back(torch::randn(8), torch::randn(1));
  auto [model, optimizer, batches] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3),
                                                         muster::DataLoader(data, {.batch_size = 16, .workers = 1}));
  const auto train = [&] {
    for (auto& [x, y] : batches) {
      accelerator.backward(F::mse_loss(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  std::string folder;
  if (accelerator.is_main_process()) folder = muster::new_temporary_folder("muster-howto-");
  folder = accelerator.broadcast_object(folder);
  const std::string trace = folder + "/trace.json";

  accelerator.profile([&] { train(); }, {.path = trace});

  muster::Throughput throughput({.world_size = accelerator.num_processes()});
  const auto start = std::chrono::steady_clock::now();
  for (int64_t pass = 1; pass <= 2; ++pass) {
    train();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    throughput.update(
        {.batches = pass * batches.size(), .samples = pass * batches.size() * 16, .seconds = seconds.count()});
  }
  accelerator.print("{:.0f} samples a second on this rank", throughput.compute().at("device/samples_per_sec"));
  const bool written = accelerator.is_main_process() && std::filesystem::file_size(trace) > 1000;
  accelerator.print("{} passed, {} failed, 0 skipped", static_cast<int>(written), static_cast<int>(!written));
  if (accelerator.is_main_process()) std::filesystem::remove_all(folder);
  return accelerator.is_main_process() && !written;
}
