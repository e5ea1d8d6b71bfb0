#pragma once

#include <filesystem>
#include <memory>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/descriptor.h"
#include "muster/cluster/cluster.h"

namespace muster::comm {

/// Holds a file lock, by which ranks of one host or of one file system take turns. Waits for it at most the given time.
/// The holder may remove the file: a rank that waited for it then locks the new file.
class FileLock {
 public:
  /// Throws: CommError (MU058) if the file cannot be made or the lock does not come in time; (MU069) if the file does
  /// not belong to this user.
  FileLock(std::filesystem::path path, double timeout_seconds);
  /// Removes the file; the lock is still held until this object is destroyed.
  void remove() noexcept;

 private:
  bool try_lock();

  Descriptor file_;
  std::filesystem::path path_;
};

/// A rendezvous file. The last of the ranks that used it removes it, however many groups were formed with it. If no
/// rank that wrote to it is alive, the next rank that joins clears the file.
class StoreFile {
 public:
  /// Joins at cluster.store_path; a path without a folder is in private_folder().
  /// Throws: what FileLock and private_folder() throw; CommError (MU069) if the file does not belong to this user; what
  /// the store throws.
  StoreFile(const ClusterEnvironment& cluster, double timeout_seconds);
  /// Leaves. Waits a few seconds at most for ranks that join or leave, and does not remove the file if that is not
  /// enough.
  /// Requires: nobody else uses store() any more.
  ~StoreFile();
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  /// The store with the keys of the whole file.
  const c10::intrusive_ptr<c10d::Store>& store() const noexcept { return store_; }
  /// The number of times that this rank has joined, including this time.
  int64_t turn() const noexcept { return turn_; }

 private:
  std::filesystem::path lock_path() const { return path_.string() + ".lock"; }
  std::filesystem::path users_path() const { return path_.string() + ".users"; }

  std::filesystem::path path_;
  /// Holds a shared lock while the rank uses the store. The store itself locks its own file in each call.
  Descriptor users_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t turn_ = 0;
};

}  // namespace muster::comm
