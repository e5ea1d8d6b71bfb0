// Checkpoints of 512 MiB in 128 tensors: saved whole, by two ranks, and while training goes on; loaded into tensors
// that exist, whole and by two ranks from a checkpoint of four. Arguments: a folder on a disk; a device, cpu if there
// is none; then "tiny", to try the program and measure nothing.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include "comm/thread_world.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/rendezvous.h"
#include "protocol.h"

namespace {

namespace fs = std::filesystem;
using muster::Durability;
using muster::State;

constexpr int kTensors = 128, kFewTensors = 4;
constexpr int64_t kElements = 1 << 20;

std::vector<torch::Tensor> make_tensors(at::Device device, int count) {
  std::vector<torch::Tensor> tensors;
  const auto ramp = torch::arange(kElements, torch::kFloat).view({1024, 1024});
  for (int i = 0; i < count; ++i) tensors.push_back((ramp / 1024 + i).to(device));
  return tensors;
}

std::string name_of(int i) { return "layer" + std::to_string(i / 4) + ".w" + std::to_string(i % 4); }

/// Rows of every tensor that a rank of `world` holds.
torch::Tensor rows(const torch::Tensor& tensor, int rank, int world) {
  return tensor.slice(0, 1024 * rank / world, 1024 * (rank + 1) / world);
}

class Bench {
 public:
  Bench(const fs::path& folder, at::Device device, bool tiny)
      : device_(device), tensors_(make_tensors(device, tiny ? kFewTensors : kTensors)) {
    group_ = muster::comm::connect(muster::read_cluster_environment());
    work_ = folder / (group_.size() > 1 ? std::string("ours") : "ours-" + std::to_string(::getpid()));
    if (group_.rank() == 0) fs::remove_all(work_);
    group_.barrier();
    for (const auto& tensor : tensors_) {
      own_.push_back(group_.size() > 1 ? rows(tensor, group_.rank(), group_.size()) : tensor);
      empty_.push_back(torch::zeros_like(own_.back()));
    }
    for (int i = 0; i < count(); ++i) {
      if (i % 4 == 0)
        empty_module_->register_module(name_of(i).substr(0, name_of(i).find('.')),
                                       std::make_shared<torch::nn::Module>());
      empty_module_->children().back()->register_buffer("w" + std::to_string(i % 4),
                                                        empty_[static_cast<std::size_t>(i)]);
    }
  }
  ~Bench() {
    std::error_code ignored;
    if (group_.rank() == 0) fs::remove_all(work_, ignored);
  }

  bench::Measured run(const std::string& name) {
    const bool durable = name.ends_with("durable");
    if (name.starts_with("raw")) return raw(durable, name.starts_with("raw reserved"));
    if (name.starts_with("save")) return save(durable ? Durability::full : Durability::none);
    if (name == "copy") return copy();
    if (name == "async") return start();
    if (name.ends_with("unchecked")) return load(muster::CheckpointCheck::layout);
    return load(group_.size() > 1 ? muster::CheckpointCheck::as_read : muster::CheckpointCheck::everything);
  }

 private:
  int count() const { return static_cast<int>(tensors_.size()); }

  muster::CheckpointContents contents() const {
    muster::CheckpointContents result;
    if (group_.size() > 1) {
      for (int i = 0; i < count(); ++i)
        result.shards.push_back(
            {name_of(i), {1024, 1024}, kElements * group_.rank() / group_.size(), own_[static_cast<std::size_t>(i)]});
      return result;
    }
    State::Map weights;
    for (int i = 0; i < count(); ++i) weights.emplace_back(name_of(i), own_[static_cast<std::size_t>(i)]);
    result.shared = State(std::move(weights));
    return result;
  }

  void fill(const fs::path& path, muster::CheckpointCheck check) {
    const muster::Checkpoint checkpoint(path, {.check = check});
    if (group_.size() > 1) {
      for (int i = 0; i < count(); ++i)
        checkpoint.read(name_of(i), kElements * group_.rank() / group_.size(), empty_[static_cast<std::size_t>(i)]);
      return;
    }
    muster::load_state_dict(*empty_module_, checkpoint.shared());
  }

  bool filled_well() const {
    for (std::size_t i = 0; i < own_.size(); ++i)
      if (!torch::equal(own_[i], empty_[i])) return false;
    return true;
  }

  void clear() {
    for (auto& tensor : empty_) tensor.zero_();
  }

  double check() const { return own_.back().sum(torch::kDouble).item<double>(); }

  /// Saves once before the timed save and throws that away: a virtual machine whose host takes free memory back needs
  /// seconds for the first touch of fresh pages, and would otherwise charge them to whoever comes next.
  bench::Measured save(Durability durability) {
    const fs::path path = work_ / "saved";
    for (const bool timed : {false, true}) {
      if (group_.rank() == 0) fs::remove_all(path);
      group_.barrier();
      const double seconds = bench::seconds([&] {
        muster::write_checkpoint(contents(), path, group_, {.durability = timed ? durability : Durability::none});
      });
      if (!timed) continue;
      clear();
      fill(path, muster::CheckpointCheck::everything);
      group_.barrier();
      if (group_.rank() == 0) fs::remove_all(path);
      return {.value = seconds * 1e3, .check = check(), .verified = filled_well()};
    }
    return {};
  }

  /// What a save at best costs: the same bytes by write() from one run of memory, to a file that grows or has its room
  /// already.
  bench::Measured raw(bool durable, bool reserved) {
    fs::create_directories(work_);
    const fs::path path = work_ / "raw";
    if (!flat_.defined()) {
      std::vector<torch::Tensor> parts;
      for (const auto& tensor : own_) parts.push_back(tensor.flatten());
      flat_ = torch::cat(parts);
    }
    double seconds = 0;
    bool good = true;
    for (int turn = 0; turn < 2; ++turn) {
      fs::remove(path);
      seconds = bench::seconds([&] {
        const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        const auto* bytes = static_cast<const char*>(flat_.const_data_ptr());
        if (reserved) good = ::fallocate(file, 0, 0, static_cast<off_t>(flat_.nbytes())) == 0;
        for (std::size_t done = 0; done < flat_.nbytes() && good;) {
          const ssize_t count = ::write(file, bytes + done, std::min<std::size_t>(flat_.nbytes() - done, 8 << 20));
          good = count > 0;
          done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
        }
        if (durable && turn == 1) good &= ::fsync(file) == 0;
        ::close(file);
      });
    }
    good &= fs::file_size(path) == flat_.nbytes();
    fs::remove(path);
    return {.value = seconds * 1e3, .check = check(), .verified = good};
  }

  /// What the start of an asynchronous save at best costs.
  bench::Measured copy() {
    if (copies_.empty())
      for (const auto& tensor : own_) copies_.push_back(tensor.clone());
    const double seconds = bench::seconds([&] {
      for (std::size_t i = 0; i < own_.size(); ++i) copies_[i].copy_(own_[i]);
    });
    return {.value = seconds * 1e3, .check = check(), .verified = true};
  }

  bench::Measured start() {
    if (!writer_) writer_.emplace(group_, muster::WriteCheckpointOptions{.durability = Durability::none});
    const fs::path path = work_ / "started";
    if (!started_) {  // measured from the second save on
      writer_->start(contents(), path);
      writer_->wait();
      started_ = true;
    }
    fs::remove_all(path);
    const double seconds = bench::seconds([&] {
      writer_->start(contents(), path);
      if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());  // it copies before it goes on
    });
    writer_->wait();
    clear();
    fill(path, muster::CheckpointCheck::everything);
    fs::remove_all(path);
    return {.value = seconds * 1e3, .check = check(), .verified = filled_well()};
  }

  bench::Measured load(muster::CheckpointCheck how) {
    const fs::path path = work_ / "to load";
    if (!fs::exists(path)) {
      group_.barrier();
      if (group_.size() == 1) muster::write_checkpoint(contents(), path, group_, {.durability = Durability::none});
      else if (group_.rank() == 0) save_by_four(path);
      group_.barrier();
    }
    clear();
    group_.barrier();
    const double seconds = bench::seconds([&] { fill(path, how); });
    return {.value = seconds * 1e3, .check = check(), .verified = filled_well()};
  }

  void save_by_four(const fs::path& path) const {
    constexpr int kWorld = 4;
    const auto failures = muster::comm::run_thread_world(kWorld, {}, [&](muster::comm::Communicator four) {
      muster::CheckpointContents part;
      for (int i = 0; i < count(); ++i)
        part.shards.push_back({name_of(i),
                               {1024, 1024},
                               kElements * four.rank() / kWorld,
                               rows(tensors_[static_cast<std::size_t>(i)], four.rank(), kWorld)});
      muster::write_checkpoint(part, path, four, {.durability = Durability::none});
    });
    for (const auto& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

  muster::comm::Communicator group_;
  fs::path work_;
  at::Device device_;
  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> own_, empty_, copies_;
  std::shared_ptr<torch::nn::Module> empty_module_ =
      std::make_shared<torch::nn::Module>();  ///< Has empty_ as its buffers.
  torch::Tensor flat_;
  std::optional<muster::CheckpointWriter> writer_;
  bool started_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? argv[1] : ".", at::Device(argc > 2 ? argv[2] : "cpu"), argc > 3);
  return bench::serve([&](const std::string& name) { return bench.run(name); });
}
