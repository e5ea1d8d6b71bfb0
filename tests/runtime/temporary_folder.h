#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "muster/comm/communicator.h"

namespace muster::testing {

/// A folder that goes away with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto name = (std::filesystem::temp_directory_path() / "muster-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
    owned_ = true;
  }
  /// Somebody else's.
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::move(other.path_)), owned_(std::exchange(other.owned_, false)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    if (owned_) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  bool owned_ = false;
};

/// The folder of a test, which the processes that run its ranks find in their environment. Requires: one at a time.
class InheritedFolder {
 public:
  InheritedFolder() {
    if (const char* given = std::getenv(kVariable)) path_ = given;
    else ::setenv(kVariable, own_.emplace().path().c_str(), 1), path_ = own_->path();
  }
  InheritedFolder(const InheritedFolder&) = delete;
  ~InheritedFolder() {
    if (own_) ::unsetenv(kVariable);
  }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  static constexpr const char* kVariable = "MUSTER_TEST_FOLDER";
  std::optional<TemporaryFolder> own_;
  std::filesystem::path path_;
};

/// One folder for all ranks, owned by rank 0. Collective.
inline TemporaryFolder shared_folder(const comm::Communicator& group) {
  if (group.rank() != 0) return TemporaryFolder(group.broadcast_bytes({}));
  TemporaryFolder folder;
  group.broadcast_bytes(folder.path().string());
  return folder;
}

}  // namespace muster::testing
