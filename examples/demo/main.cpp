// Trains a digit classifier on any number of ranks and leaves its weights and its loss curve in a folder.
//   demo FOLDER [EPOCHS]
#include <filesystem>

#include <muster/accelerator.h>
#include <muster/track/progress.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

constexpr int64_t kBatchSize = 64;  // of the whole job, whatever the number of ranks

// The share of held-out images that the model names rightly, over all ranks.
template <class Model, class Batches>
double accuracy(const muster::Accelerator& accelerator, const Model& model, Batches& batches) {
  const auto scope = accelerator.evaluation(model);
  auto counts = torch::zeros({2}, torch::kLong);
  for (auto& [image, label] : batches) {
    counts[0] += (model(image).argmax(1) == label).sum().cpu();
    counts[1] += label.size(0);
  }
  counts = accelerator.reduce(counts, "sum");
  return counts[0].template item<double>() / counts[1].template item<double>();
}

void train(const std::filesystem::path& folder, int64_t epochs) {
  muster::Accelerator accelerator({.mixed_precision = "bf16", .split_batches = true});
  accelerator.set_seed(7);
  DigitNet net;
  auto [model, optimizer, batches, held_out] = accelerator.prepare(
      net, torch::optim::AdamW(net->parameters(), 2e-3),
      muster::DataLoader(Digits(Digits::Part::train), {.batch_size = kBatchSize, .shuffle = true}),
      muster::DataLoader(Digits(Digits::Part::test), {.batch_size = kBatchSize, .even_batches = false}));
  accelerator.print("{}", accelerator.plan());

  std::ofstream curve;
  if (accelerator.is_main_process()) {
    std::filesystem::create_directories(folder);
    curve.open(folder / "loss.csv");
    curve << "step,loss\n";
  }
  int64_t step = 0;
  for (auto epoch : accelerator.epochs(epochs)) {
    muster::Progress progress(muster::formatted("epoch {:2d}/{}", epoch + 1, epochs), batches.size() * kBatchSize,
                              {.lines = 1, .quiet = !accelerator.is_main_process(), .unit = "images"});
    for (auto& [image, label] : batches) {
      auto loss = F::cross_entropy(model(image), label);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      const auto mean = accelerator.reduce(loss, "mean").item<float>();
      curve << step++ << ',' << mean << '\n';
      progress.advance(kBatchSize, muster::formatted("loss {:.3f}", mean));
    }
  }
  const double right = accuracy(accelerator, model, held_out);
  accelerator.save_model(model, folder);
  accelerator.print("held-out accuracy {:.3f}, weights in {}", right, (folder / "model.safetensors").string());
  if (accelerator.is_main_process()) std::ofstream(folder / "accuracy.txt") << muster::formatted("{:.3f}\n", right);
}

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: demo FOLDER [EPOCHS]\n");
    return 2;
  }
  train(arguments[1], count > 2 ? std::stoll(arguments[2]) : 12);
}
