// The code of logging.md.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;

struct Alarm : muster::Tracker {
  explicit Alarm(double limit) : limit(limit) {}
  std::string name() const override { return "alarm"; }
  void log(const muster::LoggedStep& step) override {
    for (const auto& value : step.values)
      if (const auto* number = std::get_if<double>(&value.data)) alarms += *number > limit;
  }
  void finish(muster::RunStatus) override { finished = true; }

  double limit;
  int alarms = 0;
  bool finished = false;
};

static std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// It is compiled, and tests/parity/mlflow_parity.cpp runs what it shows: the test of a page has no server.
[[maybe_unused]] static void log_to_mlflow(const muster::Accelerator& accelerator) {
  auto trackers =
      muster::init_trackers(accelerator, "digits", {{"lr", 0.01}},
                            {.log_with = {"csv", "mlflow"},
                             .mlflow = {.tags = {{"team", "vision"}}, .tracking_uri = "http://localhost:5000"}});
  trackers.log({{"train/loss", 0.5}}, 0);
}

int main() {
  muster::Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  std::vector<std::pair<torch::Tensor, torch::Tensor>> data;
  for (int i = 0; i < 64; ++i) data.emplace_back(torch::randn(8), torch::randn(1));
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01), muster::DataLoader(data, {.batch_size = 8}));
  std::filesystem::path root;
  if (accelerator.is_main_process()) root = muster::new_temporary_folder("muster-howto-");

  const auto alarm = std::make_shared<Alarm>(1e6);
  auto trackers = muster::init_trackers(accelerator, "digits", {{"batch_size", 8}, {"lr", 0.01}, {"optimizer", "SGD"}},
                                        {.log_with = {"csv", "tensorboard", alarm}, .root = root});
  int64_t step = 0;
  for (auto& [x, y] : batches) {
    auto loss = F::mse_loss(model(x), y);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    trackers.log({{"train/loss", loss}, {"seen", (step + 1) * 8}}, step);
    ++step;
  }

  const auto weights = net->parameters()[0].detach().to(torch::kCPU, torch::kFloat).contiguous();
  const auto histogram = muster::make_histogram({weights.data_ptr<float>(), static_cast<size_t>(weights.numel())});
  trackers.get_tracker("tensorboard").log({{"weights", histogram}, {"note", "after the first epoch"}}, step);

  muster::log_images(trackers, {{"noise", torch::rand({2, 1, 8, 8})}}, step);
  if (accelerator.is_main_process()) std::ofstream(root / "notes.txt") << "what was tried\n";
  trackers.log_artifact(root / "notes.txt");

  trackers.finish();

  bool good = true;
  if (accelerator.is_main_process()) {
    const auto folder = trackers.folder();
    good = folder == root / "digits" / "version_0" && alarm->finished && alarm->alarms == 0 &&
           text_of(folder / "artifacts/notes.txt") == "what was tried\n" &&
           text_of(folder / "metrics.csv").starts_with("step,train/loss,seen\n0,") &&
           text_of(folder / "hparams.yaml").find("optimizer: \"SGD\"\n") != std::string::npos;
    std::filesystem::remove_all(root);
    accelerator.print("{} passed, {} failed, 0 skipped", static_cast<int>(good), static_cast<int>(!good));
  }
  return !good;
}
