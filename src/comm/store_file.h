#pragma once

#include <filesystem>
#include <memory>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/descriptor.h"
#include "muster/cluster/cluster.h"

namespace muster::comm {

/// Holds a file's lock, by which ranks of one host or of one file system take turns; waits for it at most the given
/// time. Its holder may remove the file: a rank that waited for it then takes the lock of the new one.
class FileLock {
 public:
  /// Throws: CommError (MU058) if the file cannot be made or the lock does not come in time; (MU069) if it is not this
  /// user's.
  FileLock(std::filesystem::path path, double timeout_seconds);
  /// Removes the file; the lock is still held until this object is destroyed.
  void remove() noexcept;

 private:
  bool try_lock();

  Descriptor file_;
  std::filesystem::path path_;
};

/// A rendezvous file. The last of the ranks that used it removes it, however many groups were formed with it; what
/// ranks wrote of which none lives any more, the next one that joins removes.
class StoreFile {
 public:
  /// Joins at cluster.store_path; a path without a folder is in private_folder().
  /// Throws: as FileLock and private_folder(); CommError (MU069) if the file is not this user's; what the store throws.
  StoreFile(const ClusterEnvironment& cluster, double timeout_seconds);
  /// Leaves; waits at most some seconds for others that join or leave, and then does not remove the file.
  /// Requires: nobody else uses store() any more.
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  /// The keys of the whole file.
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// How many times this rank has joined, including this time.
  int64_t turn() const noexcept { return turn_; }

 private:
  std::filesystem::path lock_path() const { return path_.string() + ".lock"; }
  std::filesystem::path users_path() const { return path_.string() + ".users"; }

  std::filesystem::path path_;
  /// Holds a shared lock while the rank uses the store, whose own file is locked by each of its calls.
  Descriptor users_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t turn_ = 0;
};

}  // namespace muster::comm
