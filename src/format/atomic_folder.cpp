#include "atomic_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <thread>

#include "atomic_file.h"
#include "base/log.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPartEnd = ".partial";
constexpr std::string_view kFormerEnd = ".former";
constexpr std::size_t kWordLetters = 8;  // length of the random part of a name

/// Describes the owner to refused writers: "process 123 on host since 2026-01-31 12:00:00 UTC".
std::string lock_owner() {
  char host[256] = "this machine";
  ::gethostname(host, sizeof(host) - 1);
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char time[64] = "";
  if (::gmtime_r(&now, &parts)) std::strftime(time, sizeof(time), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return "process " + std::to_string(::getpid()) + " on " + host + " since " + time;
}

std::string owner_in(int descriptor) {
  char text[512];
  const ssize_t count = ::pread(descriptor, text, sizeof(text), 0);
  std::string owner(text, count > 0 ? static_cast<std::size_t>(count) : 0);
  for (char& c : owner)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return owner.empty() ? "another process" : owner;
}

[[noreturn]] void refuse_lock(const fs::path& path, int error) {
  throw CheckpointError("MU202", "nothing was saved: " + path.string() +
                                     ", which marks the folder as being written, cannot be written (" +
                                     std::generic_category().message(error) +
                                     "); choose a folder that may be written to");
}

/// Another writer may have removed the file after this one opened it and before it locked it.
bool is_still_there(int descriptor, const fs::path& path) {
  struct stat held {
  }, named{};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

[[noreturn]] void refuse_folder(const fs::path& path, const std::string& what, int error) {
  throw CheckpointError("MU202", path.string() + " was not written: " + what + " (" +
                                     std::generic_category().message(error) + "); what was there before is unchanged");
}

fs::path beside(const fs::path& path, std::string_view end) {
  return path.parent_path() / ("." + path.filename().string() + "." + random_word(kWordLetters) + std::string(end));
}

/// The folders that writers of this name left beside it: `.NAME.XXXXXXXX` plus `end`. Links and files with such names
/// are ignored.
std::vector<fs::path> left_beside(const fs::path& path, std::string_view end) {
  const std::string start = "." + path.filename().string() + ".";
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::path& left : paths_in(path.parent_path())) {
    const std::string name = left.filename().string();
    if (name.size() != start.size() + kWordLetters + end.size() || !name.starts_with(start) || !name.ends_with(end))
      continue;
    if (name.find('.', start.size()) != start.size() + kWordLetters) continue;
    if (fs::symlink_status(left, ignored).type() == fs::file_type::directory) found.push_back(left);
  }
  return found;
}

/// A path without "." or ".." at its end, link or trailing slash, so that names beside it can be formed.
fs::path normalized(fs::path path) {
  path = path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code ignored;
  if (fs::is_symlink(path, ignored)) path = fs::weakly_canonical(path, ignored);
  if (!path.has_filename() || path.filename() == "." || path.filename() == "..")
    path = fs::weakly_canonical(path, ignored);
  if (!path.has_parent_path()) path = fs::path(".") / path;
  if (!path.has_filename() || path == "/") refuse_folder(path, "it has no name of its own", EINVAL);
  return path;
}

fs::path with_folders_above(fs::path path) {
  path = normalized(std::move(path));
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) refuse_folder(path, "the folder above it cannot be made", error.value());
  return path;
}

void check_replaceable(const fs::path& path, bool (*is_own)(std::string_view)) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(
        "MU212",
        path.string() + " is " + what +
            " and is not replaced by a checkpoint; nothing was saved. Save to another folder, or move that away");
  };
  if (!S_ISDIR(status.st_mode)) refuse("a file");
  std::string others;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_own(name)) others += (others.empty() ? "" : ", ") + shown(name);
    if (others.size() > 200) break;
  }
  if (error) refuse("a folder that cannot be looked into (" + error.message() + ")");
  if (!others.empty()) refuse("a folder with files of others (" + others + ")");
}

bool exchange(const fs::path& one, const fs::path& other) {
#ifndef RENAME_EXCHANGE
  constexpr unsigned RENAME_EXCHANGE = 2;
#endif
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  refuse_folder(other, "it could not be renamed into place", errno);
}

/// Replaces the folder on file systems without an exchange. Returns the path of the former one.
fs::path replace_in_two_steps(const fs::path& part, const fs::path& path) {
  const fs::path former = beside(path, kFormerEnd);
  if (::rename(path.c_str(), former.c_str()) != 0) refuse_folder(path, "the former one cannot be set aside", errno);
  if (::rename(part.c_str(), path.c_str()) == 0) return former;
  const int error = errno;
  ::rename(former.c_str(), path.c_str());
  refuse_folder(path, "it could not be renamed into place", error);
}

}  // namespace

FolderLock::FolderLock(const fs::path& path, std::chrono::milliseconds timeout)
    : lock_path_(path.parent_path() / ("." + path.filename().string() + ".lock")) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    descriptor_ = Descriptor(::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!descriptor_) refuse_lock(lock_path_, errno);
    int refused = 0;
    while (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && (refused = errno) == EINTR) refused = 0;
    if (refused == EWOULDBLOCK) {
      const std::string owner = owner_in(descriptor_.get());
      descriptor_.close();
      if (std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        continue;
      }
      throw CheckpointError("MU211", path.string() + " is being written by " + owner +
                                         "; nothing was saved. Wait until that is done, or save to another folder");
    }
    if (refused != 0)
      log::warning("the file system of ", path.string(), " has no locks (", std::generic_category().message(refused),
                   "): make sure that no other process saves there");
    if (is_still_there(descriptor_.get(), lock_path_)) break;
    descriptor_.close();
  }
  const std::string owner = lock_owner();
  // Without this text the lock still holds; only the message to others has less detail.
  if (::ftruncate(descriptor_.get(), 0) != 0 || ::pwrite(descriptor_.get(), owner.data(), owner.size(), 0) < 0)
    log::debug("the owner could not be written into ", lock_path_.string());
}

FolderLock::~FolderLock() { ::unlink(lock_path_.c_str()); }

AtomicFolder::AtomicFolder(const fs::path& path, Durability durability, bool (*is_own)(std::string_view))
    : path_(with_folders_above(path)), lock_(path_), durability_(durability) {
  clear_left(path_);
  check_replaceable(path_, is_own);
  // A replacement of a folder that others may not enter is never open to them.
  struct stat former {};
  const bool replaces = ::lstat(path_.c_str(), &former) == 0;
  do part_ = beside(path_, kPartEnd);
  while (::mkdir(part_.c_str(), replaces ? 0700 : 0777) != 0 && errno == EEXIST);
  if (!fs::is_directory(part_)) refuse_folder(path_, "no folder can be made beside it", errno);
  if (replaces) ::chmod(part_.c_str(), (former.st_mode & 0777) | S_IRWXU);
}

AtomicFolder::~AtomicFolder() {
  if (!is_published_) remove_folder(part_);
}

void AtomicFolder::publish() {
  if (durability_ != Durability::none) sync_folder(part_);
  struct stat status {};
  fs::path former;
  if (::lstat(path_.c_str(), &status) != 0) {
    if (::rename(part_.c_str(), path_.c_str()) != 0) refuse_folder(path_, "it could not be renamed into place", errno);
  } else {
    former = exchange(part_, path_) ? part_ : replace_in_two_steps(part_, path_);
  }
  is_published_ = true;
  if (durability_ == Durability::full) sync_folder(path_.parent_path());
  if (!former.empty()) remove_folder(former);
}

void clear_left(const fs::path& path) noexcept {
  try {
    for (const fs::path& former : left_beside(path, kFormerEnd)) {
      struct stat status {};
      if (::lstat(path.c_str(), &status) != 0 && ::rename(former.c_str(), path.c_str()) == 0) continue;
      remove_folder(former);
    }
    for (const fs::path& part : left_beside(path, kPartEnd)) remove_folder(part);
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

void remove_folder(const fs::path& path) noexcept {
  try {
    fs::path old = path;
    const std::string name = path.filename().string();
    if (!name.ends_with(kPartEnd) && !name.ends_with(kFormerEnd)) {
      old = beside(path, kPartEnd);
      if (::rename(path.c_str(), old.c_str()) != 0) old = path;
    }
    std::error_code error;
    fs::remove_all(old, error);
    if (error) log::warning(old.string(), " is no longer needed and could not be removed: ", error.message());
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

fs::path find_folder(const fs::path& path) {
  const fs::path wanted = normalized(path);
  std::error_code ignored;
  if (fs::exists(wanted, ignored)) return wanted;
  const auto former = left_beside(wanted, kFormerEnd);
  return former.empty() ? wanted : former.front();
}

}  // namespace muster::format
