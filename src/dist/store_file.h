#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <memory>

#include "muster/cluster/cluster.h"

namespace muster::dist {

/// Holds a file's lock, by which ranks of one host or of one file system take turns; waits for it no longer than asked.
/// The file may be removed by its holder: who waited for it then takes the lock of the new one.
class FileLock {
 public:
  /// Throws: CommError (MU058) if the file cannot be made or the lock does not come in time; (MU069) if it is not this user's.
  FileLock(std::filesystem::path path, double timeout_seconds);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  /// Removes the file; the lock is held until the end all the same.
  void remove() noexcept;

 private:
  bool try_lock();

  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// A file in which ranks meet. It goes with the last of those that came, however many groups met in it.
class StoreFile {
 public:
  /// Comes in, to cluster.store_path; a path without a folder lies in private_folder().
  /// Throws: as FileLock and private_folder(); CommError (MU069) if the file is not this user's; what the store throws.
  StoreFile(const Cluster& cluster, double timeout_seconds);
  /// Leaves; waits for others that come or leave at most some seconds, and then lets the file be.
  /// Requires: nobody else uses store() any more.
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  /// The keys of the whole file.
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// How many times this rank has come, this time included.
  int64_t turn() const noexcept { return turn_; }

 private:
  std::filesystem::path lock_path() const;

  std::filesystem::path path_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t turn_ = 0;
};

}  // namespace muster::dist
