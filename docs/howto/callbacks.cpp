// The code of callbacks.md.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <muster/base/temporary_folder.h>
#include <muster/trainer.h>
#include <torch/torch.h>

using namespace std::chrono_literals;

struct Line : muster::TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 1));

  torch::Tensor training_step(torch::Tensor& x, int64_t) {
    const auto loss = torch::mse_loss(layer(x), x.sum(1, true));
    log("loss", loss, {.prog_bar = true});
    return loss;
  }
  void validation_step(torch::Tensor& x, int64_t) { log("val_loss", torch::mse_loss(layer(x), x.sum(1, true))); }
  torch::Tensor predict_step(torch::Tensor& x, int64_t) { return layer(x); }
  muster::Optimizers configure_optimizers() override {
    auto sgd = std::make_shared<torch::optim::SGD>(parameters(), 0.1);
    return {sgd, muster::StepLR(*sgd, {.gamma = 0.5, .step_size = 2})};
  }
};

struct CsvWriter : muster::PredictionWriter {
  explicit CsvWriter(const std::filesystem::path& path) : file(path) {}
  void write_on_batch_end(muster::Trainer&, muster::TrainerModule&, const muster::StepOutput& prediction,
                          const Indices& batch_indices, const muster::BatchView&, muster::BatchPlace) override {
    const auto& values = *prediction.get_if<torch::Tensor>();
    for (size_t i = 0; i < batch_indices.size(); ++i)
      file << batch_indices[i] << ',' << values[static_cast<int64_t>(i)].item<double>() << '\n';
  }
  std::ofstream file;
};

struct SampleCount : muster::Callback {
  int64_t samples = 0;

  void on_train_batch_end(muster::Trainer&, muster::TrainerModule&, const muster::StepOutput&,
                          const muster::BatchView& batch, muster::BatchPlace) override {
    samples += batch.size();
  }
  muster::State state_dict() const override { return muster::State::Map{{"samples", samples}}; }
  void load_state_dict(const muster::State& state) override { samples = state.at("samples").integer(); }
};

static auto rows(int64_t count) {
  return muster::DataLoader([data = torch::randn({count, 4})](int64_t i) { return data[i]; }, count, {.batch_size = 8});
}

static std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int main() {
  torch::manual_seed(1);
  const auto root = muster::new_temporary_folder("muster-howto-");
  Line line;
  const auto train = rows(64), held_out = rows(16);

  std::vector<double> losses;
  auto print = std::make_shared<muster::LambdaCallback>(
      muster::LambdaHooks{.on_train_epoch_end = [&](muster::Trainer& trainer, muster::TrainerModule&) {
        losses.push_back(trainer.callback_metrics().at("val_loss"));
        trainer.print("epoch {}: {:.4f}", trainer.current_epoch(), losses.back());
      }});

  auto rates = std::make_shared<muster::LearningRateMonitor>(
      muster::LearningRateMonitorOptions{.log_momentum = true, .logging_interval = "epoch"});

  auto timer = std::make_shared<muster::Timer>(muster::TimerOptions{.duration = 8h});

  auto accumulation = std::make_shared<muster::GradientAccumulationScheduler>(std::map<int64_t, int>{{2, 4}, {3, 8}});

  auto bar = std::make_shared<muster::TrainerProgressBar>(muster::TrainerProgressBarOptions{.refresh_rate = 4});

  auto summary = std::make_shared<muster::ModelSummary>(muster::ModelSummaryOptions{.max_depth = -1});

  auto rescue = std::make_shared<muster::OnExceptionCheckpoint>();

  auto best = std::make_shared<muster::ModelCheckpoint>(muster::ModelCheckpointOptions{
      .filename = "{epoch}-{val_loss:.3f}", .monitor = "val_loss", .save_last = true, .save_top_k = 2});

  auto enough = std::make_shared<muster::EarlyStopping>(
      muster::EarlyStoppingOptions{.min_delta = 1e-6, .monitor = "val_loss", .patience = 2});

  auto count = std::make_shared<SampleCount>();

  muster::Trainer trainer({.callbacks = {print, rates, timer, accumulation, bar, summary, rescue, best, enough, count},
                           .default_root_dir = root,
                           .log_every_n_steps = 1,
                           .logger = {.log_with = {"csv"}},
                           .max_epochs = 4});
  trainer.fit(line, train, held_out);

  const auto trained_for = timer->time_elapsed(muster::Stage::fit);
  const auto left = timer->time_remaining();

  auto writer = std::make_shared<CsvWriter>(root / "predictions.csv");
  muster::Trainer({.callbacks = {writer}}).predict(line, held_out, {.return_predictions = false});
  writer->file.close();

  const auto logged = text_of(trainer.log_dir() / "metrics.csv");
  const auto written = text_of(root / "predictions.csv");
  const bool good = losses.size() == 4 && losses.back() < losses.front() && *left == 8h - trained_for &&
                    trainer.global_step() == 8 + 8 + 2 + 1 && logged.find("lr-SGD-momentum") != logged.npos &&
                    std::ranges::count(written, '\n') == 16 && best->best_k_models().size() == 2 &&
                    best->best_model_path().filename().string().starts_with("epoch=3-val_loss=0.") &&
                    best->last_model_path().filename() == "last.ckpt" && enough->wait_count() == 0 &&
                    count->samples == 4 * 64;
  std::filesystem::remove_all(root);
  trainer.print("{} passed, {} failed, 0 skipped", static_cast<int>(good), static_cast<int>(!good));
  return !good;
}
