// The code of storage.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <muster/checkpoint/checkpoint.h>
#include <torch/torch.h>

/// A client of an object store: objects under keys, put as a whole. This one keeps each object in a file.
class Bucket {
 public:
  explicit Bucket(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void put(const std::string& key, const std::string& bytes) const {
    std::ofstream(path(key + ".new"), std::ios::binary) << bytes;
    std::filesystem::rename(path(key + ".new"), path(key));
  }
  void get(const std::string& key, std::uint64_t offset, std::span<char> to) const {
    std::ifstream object(path(key), std::ios::binary);
    object.seekg(static_cast<std::streamoff>(offset));
    if (!object.read(to.data(), static_cast<std::streamsize>(to.size())))
      throw std::runtime_error(key + " cannot be read");
  }
  std::optional<std::uint64_t> size(const std::string& key) const {
    if (!std::filesystem::exists(path(key))) return std::nullopt;
    return std::filesystem::file_size(path(key));
  }
  std::vector<std::string> keys(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::string key = entry.path().filename().string();
      std::replace(key.begin(), key.end(), '+', '/');
      if (key.starts_with(prefix) && !key.ends_with(".new")) found.push_back(key);
    }
    return found;
  }
  void erase(const std::string& key) const { std::filesystem::remove(path(key)); }

 private:
  std::filesystem::path path(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '+');
    return folder_ / key;
  }

  std::filesystem::path folder_;
};

struct ObjectFile : muster::StorageFile {
  ObjectFile(const Bucket& to, std::string name) : bucket(to), key(std::move(name)) {}
  void write(std::string_view more) override { bytes += more; }
  void close() override { bucket.put(key, bytes); }

  const Bucket& bucket;
  std::string key, bytes;
};

class ObjectStorage : public muster::CheckpointStorage {
 public:
  explicit ObjectStorage(Bucket bucket) : bucket_(std::move(bucket)) {}

  std::unique_ptr<muster::StorageFile> create(const muster::PendingCheckpoint& save, const std::string& file) override {
    return std::make_unique<ObjectFile>(bucket_, key(save.name, save.id, file));
  }
  void begin(const muster::PendingCheckpoint& save) override { erase_all_but(committed(save.name), save.name); }
  void commit(const muster::PendingCheckpoint& save) override {
    bucket_.put("current/" + save.name, save.id);  // from here on the name stands for this save
    erase_all_but(save.id, save.name);
  }
  void discard(const muster::PendingCheckpoint& save) override { erase_all_but(committed(save.name), save.name); }

  std::vector<std::string> list(const std::string& folder) override {
    const std::string prefix = "current/" + (folder.empty() ? "" : folder + "/");
    std::vector<std::string> names;
    for (const std::string& key : bucket_.keys(prefix))
      if (key.find('/', prefix.size()) == std::string::npos) names.push_back(key.substr(prefix.size()));
    return names;
  }
  std::optional<std::uint64_t> size(const std::string& checkpoint, const std::string& file) override {
    return bucket_.size(key(checkpoint, committed(checkpoint), file));
  }
  void read(const std::string& checkpoint, const std::string& file, std::uint64_t offset, std::span<char> to) override {
    bucket_.get(key(checkpoint, committed(checkpoint), file), offset, to);
  }
  void remove(const std::string& checkpoint) override {
    bucket_.erase("current/" + checkpoint);
    erase_all_but("", checkpoint);
  }

 private:
  static std::string key(const std::string& checkpoint, const std::string& id, const std::string& file) {
    return "saves/" + checkpoint + "@" + id + "/" + file;
  }
  /// The id of the save that the name stands for; empty if there is none.
  std::string committed(const std::string& checkpoint) const {
    std::string id(bucket_.size("current/" + checkpoint).value_or(0), '\0');
    if (!id.empty()) bucket_.get("current/" + checkpoint, 0, id);
    return id;
  }
  void erase_all_but(const std::string& id, const std::string& checkpoint) const {
    for (const std::string& object : bucket_.keys("saves/" + checkpoint + "@"))
      if (id.empty() || !object.starts_with(key(checkpoint, id, ""))) bucket_.erase(object);
  }

  Bucket bucket_;
};

static void train(const std::shared_ptr<muster::CheckpointStorage>& storage, int steps_before, int steps) {
  muster::Accelerator accelerator(
      {.cpu = true,
       .project = {.automatic_checkpoint_naming = true, .directory = "run", .storage = storage, .total_limit = 2}});
  torch::nn::Linear net(4, 1);
  torch::nn::init::zeros_(net->weight);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  if (!muster::latest_checkpoint("run/checkpoints", storage)) accelerator.save_state();
  else accelerator.load_state();
  for (int step = 0; step < steps; ++step) {
    accelerator.backward(model(torch::ones({2, 4})).mean());
    optimizer.step();
    optimizer.zero_grad();
    accelerator.save_state({}, {.asynchronous = step % 2 == 1});
  }
  accelerator.wait_for_save();
  if (net->weight.mean().item<double>() != -0.5 * (steps_before + steps)) std::abort();
}

int main() {
  std::filesystem::path folder;
  {
    muster::Accelerator accelerator({.cpu = true});
    folder = accelerator.group().broadcast_bytes(
        accelerator.is_main_process() ? muster::new_temporary_folder("muster-howto-").string() : std::string());
  }
  const auto storage = std::make_shared<ObjectStorage>(Bucket(folder));
  train(storage, 0, 3);
  train(storage, 3, 2);
  if (storage->list("run/checkpoints").size() != 2) std::abort();
  muster::Accelerator accelerator({.cpu = true});
  accelerator.group().barrier();
  if (accelerator.is_main_process()) {
    std::filesystem::remove_all(folder);
    std::puts("1 passed, 0 failed, 0 skipped");
  }
}
