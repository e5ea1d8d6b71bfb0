// 512 MiB in 128 tensors: to one safetensors file, and from it into tensors that exist. Argument: a folder on a disk.
#include <unistd.h>

#include <filesystem>

#include <torch/torch.h>

#include "muster/checkpoint/weights.h"
#include "protocol.h"

namespace {

namespace fs = std::filesystem;

muster::NamedTensors make_tensors() {
  muster::NamedTensors tensors;
  const auto ramp = torch::arange(1 << 20, torch::kFloat).view({1024, 1024});
  for (int i = 0; i < 128; ++i)
    tensors.emplace_back("layer" + std::to_string(i / 4) + ".w" + std::to_string(i % 4), ramp / 1024 + i);
  return tensors;
}

bool equal(const muster::NamedTensors& tensors, const muster::LoadedWeights& others) {
  for (const auto& [name, tensor] : tensors)
    if (!torch::equal(tensor, others.at(name))) return false;
  return tensors.size() == others.tensors.size();
}

class Bench {
 public:
  explicit Bench(const fs::path& folder) : folder_(folder) {
    fs::create_directories(folder_);
    muster::save_file(tensors_, input_, {.durability = muster::Durability::none});
    for (const auto& [name, tensor] : tensors_) empty_.emplace_back(name, torch::zeros_like(tensor));
  }
  ~Bench() {
    std::error_code ignored;
    fs::remove(input_, ignored);
    fs::remove(output_, ignored);
  }

  bench::Measured run(const std::string& name) {
    if (name == "save") return save(muster::Durability::none);
    if (name == "save durable") return save(muster::Durability::full);
    return load(name == "load mapped");
  }

 private:
  /// Saves once before the timed save and throws that away: a virtual machine whose host takes free memory back needs
  /// seconds for the first touch of fresh pages, and would otherwise charge them to whoever comes next.
  bench::Measured save(muster::Durability durability) {
    fs::remove(output_);
    muster::save_file(tensors_, output_, {.durability = muster::Durability::none});
    fs::remove(output_);
    const double seconds = bench::seconds([&] { muster::save_file(tensors_, output_, {.durability = durability}); });
    const bool verified = equal(tensors_, muster::load_file(output_));
    const auto bytes = static_cast<double>(fs::file_size(output_));
    fs::remove(output_);
    return {.value = seconds * 1e3, .check = bytes, .verified = verified};
  }

  bench::Measured load(bool mapped) {
    for (auto& [name, tensor] : empty_) tensor.zero_();
    const double seconds = bench::seconds([&] {
      if (!mapped) {
        muster::load_into(empty_, input_);
        return;
      }
      const auto loaded = muster::load_file(input_);
      for (auto& [name, tensor] : empty_) tensor.copy_(loaded.at(name));
    });
    bool verified = true;
    for (std::size_t i = 0; i < tensors_.size(); ++i) verified &= torch::equal(tensors_[i].second, empty_[i].second);
    return {.value = seconds * 1e3, .check = empty_.back().second.sum().item<double>(), .verified = verified};
  }

  fs::path folder_;
  fs::path input_ = folder_ / ("ours-in-" + std::to_string(::getpid()) + ".safetensors");
  fs::path output_ = folder_ / ("ours-out-" + std::to_string(::getpid()) + ".safetensors");
  muster::NamedTensors tensors_ = make_tensors();
  muster::NamedTensors empty_;
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? argv[1] : ".");
  return bench::serve([&](const std::string& name) { return bench.run(name); });
}
