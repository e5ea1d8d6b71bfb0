#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "format/atomic_folder.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

FolderLock::FolderLock(const fs::path& path, std::chrono::milliseconds timeout)
    : lock_path_(path.parent_path() / ("." + path.filename().string() + ".lock")) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    descriptor_ = ::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) refuse_lock(lock_path_, errno);
    int refused = 0;
    while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && (refused = errno) == EINTR) refused = 0;
    if (refused == EWOULDBLOCK) {
      const std::string owner = owner_in(descriptor_);
      ::close(descriptor_);
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
    if (is_still_there(descriptor_, lock_path_)) break;
    ::close(descriptor_);
  }
  const std::string owner = lock_owner();
  // Without this text the lock still holds; only the message to others has less detail.
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, owner.data(), owner.size(), 0) < 0)
    log::debug("the owner could not be written into ", lock_path_.string());
}

FolderLock::~FolderLock() {
  ::unlink(lock_path_.c_str());
  ::close(descriptor_);
}

}  // namespace muster::format
