#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/checkpoint.h"

namespace muster {

/// An object store: objects under flat keys, each put and replaced as a whole. Here each is a file of one folder, so
/// that processes share it. A save's objects are "NAME!ID!FILE"; the object "NAME" holds the id of the committed save.
class ObjectStore : public CheckpointStorage {
 public:
  /// Called before each call of a function, with its name and the key; throws or kills in its place.
  using Before = std::function<void(const std::string& function, const std::string& key)>;

  explicit ObjectStore(std::filesystem::path bucket, Before before = {})
      : bucket_(std::move(bucket)), before_(std::move(before)) {
    std::filesystem::create_directories(bucket_);
  }

  void begin(const PendingCheckpoint& save) override {
    enter("begin", save.name);
    const auto kept = has(save.name) ? get(save.name) : std::string();
    for (const auto& key : keys())
      if (key.starts_with(save.name + "!") && (kept.empty() || !key.starts_with(save.name + "!" + kept))) erase(key);
  }

  std::unique_ptr<StorageFile> create(const PendingCheckpoint& save, const std::string& file) override {
    enter("create", save.name + "/" + file);
    return std::make_unique<File>(*this, key_of(save.name, save.id, file));
  }

  void commit(const PendingCheckpoint& save) override {
    enter("commit", save.name);
    const auto former = has(save.name) ? get(save.name) : std::string();
    put(save.name, save.id);
    if (!former.empty()) erase_save(save.name, former);
  }

  void discard(const PendingCheckpoint& save) override {
    enter("discard", save.name);
    erase_save(save.name, save.id);
  }

  std::vector<std::string> list(const std::string& folder) override {
    enter("list", folder);
    std::vector<std::string> names;
    for (const std::filesystem::path key : keys())
      if (key.native().find('!') == std::string::npos && key.parent_path() == folder)
        names.push_back(key.filename().string());
    return names;
  }

  std::optional<std::uint64_t> size(const std::string& checkpoint, const std::string& file) override {
    enter("size", checkpoint + "/" + file);
    if (!has(checkpoint)) return std::nullopt;
    const auto key = key_of(checkpoint, get(checkpoint), file);
    if (!has(key)) return std::nullopt;
    return std::filesystem::file_size(path_of(key));
  }

  void read(const std::string& checkpoint, const std::string& file, std::uint64_t offset, std::span<char> to) override {
    enter("read", checkpoint + "/" + file);
    std::ifstream object(path_of(key_of(checkpoint, get(checkpoint), file)), std::ios::binary);
    object.seekg(static_cast<std::streamoff>(offset));
    if (!object.read(to.data(), static_cast<std::streamsize>(to.size())))
      throw std::runtime_error("the object is short");
  }

  void remove(const std::string& checkpoint) override {
    enter("remove", checkpoint);
    const auto id = get(checkpoint);
    erase(checkpoint);
    erase_save(checkpoint, id);
  }

  /// What a test looks at and changes.
  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(bucket_)) {
      auto key = entry.path().filename().string();
      std::replace(key.begin(), key.end(), '+', '/');
      if (!key.starts_with('.')) all.push_back(key);
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  std::filesystem::path path_of(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '+');
    return bucket_ / key;
  }
  std::string key_of(const std::string& name, const std::string& id, const std::string& file) const {
    return name + "!" + id + "!" + file;
  }
  std::string get(const std::string& key) const {
    std::ifstream object(path_of(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(object), {}};
  }
  void put(const std::string& key, const std::string& bytes) const {
    static std::atomic<int> count = 0;
    const auto part = bucket_ / ("." + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::ofstream(part, std::ios::binary) << bytes;
    std::filesystem::rename(part, path_of(key));
  }

 private:
  class File : public StorageFile {
   public:
    File(ObjectStore& store, std::string key) : store_(store), key_(std::move(key)) {}
    void write(std::string_view bytes) override {
      store_.enter("write", key_);
      bytes_ += bytes;
    }
    void close() override {
      store_.enter("close", key_);
      store_.put(key_, bytes_);
    }

   private:
    ObjectStore& store_;
    std::string key_, bytes_;
  };

  void enter(const std::string& function, const std::string& key) const {
    if (before_) before_(function, key);
  }
  bool has(const std::string& key) const { return std::filesystem::exists(path_of(key)); }
  void erase(const std::string& key) const { std::filesystem::remove(path_of(key)); }
  void erase_save(const std::string& name, const std::string& id) const {
    for (const auto& key : keys())
      if (key.starts_with(key_of(name, id, ""))) erase(key);
  }

  std::filesystem::path bucket_;
  Before before_;
};

}  // namespace muster
