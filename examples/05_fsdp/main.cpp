// A transformer learns a book, byte by byte; under "fsdp" no rank holds all of it. Leaves the loss and this rank's
// memory after every step in FOLDER/rank0.csv and so on.
//   fsdp TEXT FOLDER [STRATEGY [PRECISION [auto|wrap [STEPS [WIDTH]]]]]
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <muster/base/format.h>
#include <muster/fabric.h>
#include <torch/torch.h>

#include "../book.h"

constexpr int64_t kEpochs = 3;

// What this process holds in memory, in MiB.
double resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kibibytes = 0; word == "VmRSS:" && status >> kibibytes) return kibibytes / 1024;
  return 0;
}

void train(const std::vector<std::string>& given) {
  const auto option = [&](size_t i, const char* otherwise) {
    return i < given.size() ? given[i] : std::string(otherwise);
  };
  const std::filesystem::path folder = option(1, ".");
  const auto steps = std::stoll(option(5, "40"));
  muster::Fabric fabric({.precision = muster::Precision::parse(option(3, "32-true")),
                         .strategy = muster::Strategy::parse(option(2, "fsdp"))});
  fabric.launch();
  const double before = resident();
  torch::manual_seed(1);
  Reader net(std::stoll(option(6, "384")), option(4, "auto") == "wrap");
  auto [model, optimizer] = fabric.setup(net, torch::optim::AdamW(net->parameters(), 1e-3));
  auto batches = fabric.setup_dataloaders(muster::DataLoader(Book(option(0, "")), {.batch_size = 4, .shuffle = true}));
  fabric.print("{}", fabric.plan());

  std::filesystem::create_directories(folder);
  std::ofstream curve(folder / muster::formatted("rank{}.csv", fabric.global_rank()));
  curve << "step,loss,MiB\n";
  auto batch = batches.begin();
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    torch::Tensor mean = torch::zeros({});
    for (int64_t step = 0; step < steps; ++step, ++batch) {
      auto loss = model(*batch);
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      const auto shown = fabric.all_reduce(loss.detach().to(torch::kFloat), "mean");
      mean += shown / steps;
      curve << epoch * steps + step << ',' << shown.item<float>() << ',' << resident() - before << '\n';
    }
    fabric.print("epoch {}: loss {:.4f}", epoch, mean.item<float>());
  }
  fabric.save_model(model, folder);
}

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: fsdp TEXT FOLDER [STRATEGY [PRECISION [auto|wrap [STEPS [WIDTH]]]]]\n");
    return 2;
  }
  train({arguments + 1, arguments + count});
}
