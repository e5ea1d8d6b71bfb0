#include "comm/stores.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <thread>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/base/temporary_folder.h"

namespace muster::comm {
namespace {

constexpr double kLeavingSeconds = 5;

std::filesystem::path placed(const std::filesystem::path& path) {
  return path.has_parent_path() ? path : private_folder() / path;
}

/// Opens a file that belongs to this user and has no other hard link. Creates it if it is missing.
Descriptor open_own(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  const int error = errno;
  struct stat status {};
  const bool is_there = file ? ::fstat(file.get(), &status) == 0 : ::lstat(path.c_str(), &status) == 0;
  // The link count is 1, or 0 if another rank has removed the file since it was opened.
  const bool is_own = S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && status.st_nlink <= 1;
  if (file && is_own) return file;
  if (is_there && !is_own)
    throw CommError(
        "MU069",
        formatted(
            "the ranks cannot rendezvous in {}: it is a link, or no file of this user (user {} owns it). Remove it, "
            "or set TMPDIR to a folder of your own",
            path.string(), status.st_uid));
  throw CommError(
      "MU058",
      formatted("the store's file {} cannot be opened: {}. Is its folder there, and may this user write to it?",
                path.string(), std::generic_category().message(error)));
}

/// Holds a file lock, by which ranks of one host or of one file system take turns. Waits for it at most the given time.
/// The holder may remove the file: a rank that waited for it then locks the new file.
class FileLock {
 public:
  /// Throws: CommError (MU058) if the file cannot be made or the lock does not come in time; (MU069) if the file does
  /// not belong to this user.
  FileLock(std::filesystem::path path, double timeout_seconds) : path_(std::move(path)) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
    while (!try_lock()) {
      if (std::chrono::steady_clock::now() > end)
        throw CommError("MU058",
                        formatted("the lock of the store at {} did not come within {:.0f} s; another rank holds it",
                                  path_.string(), timeout_seconds));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  /// Removes the file; the lock is still held until this object is destroyed.
  void remove() noexcept { ::unlink(path_.c_str()); }

 private:
  bool try_lock() {
    file_ = open_own(path_);
    struct stat held {
    }, named{};
    // The last holder may have removed the file meanwhile; a lock of a removed file excludes no other rank.
    return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(file_.get(), &held) == 0 &&
           ::stat(path_.c_str(), &named) == 0 && held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  }

  Descriptor file_;
  std::filesystem::path path_;
};

using Bytes = std::vector<std::uint8_t>;

constexpr std::string_view kMark = "muster\x1b\x01";
constexpr std::size_t kAdded = kMark.size() + cluster::kSignatureBytes;

std::string_view text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

cluster::Signature signature_of(const cluster::Secret& secret, const std::string& key, std::string_view value) {
  return cluster::sign(secret, {"muster value", key, value});
}

}  // namespace

StoreFile::StoreFile(const ClusterEnvironment& cluster, double timeout_seconds) : path_(placed(cluster.store_path)) {
  // Joining and leaving exclude each other, so that no rank joins through a file that is about to be removed. Even
  // constructing a FileStore writes to the file.
  const FileLock lock(lock_path(), timeout_seconds);
  open_own(path_);
  users_ = open_own(users_path());
  if (::flock(users_.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::resize_file(path_, 0);
  ::flock(users_.get(), LOCK_SH);
  store_ = c10::make_intrusive<c10d::PrefixStore>(cluster.store_prefix + "muster",
                                                  c10::make_intrusive<c10d::FileStore>(path_.string(), -1));
  store_->add("connected", 1);
  turn_ = store_->add(formatted("connects/{}", cluster.rank), 1);
}

StoreFile::~StoreFile() {
  try {
    FileLock lock(lock_path(), kLeavingSeconds);
    const bool last = store_->add("left", 1) == store_->add("connected", 0);
    store_.reset();  // destroying the store writes to the file, too
    if (!last) return;
    ::unlink(path_.c_str());
    ::unlink(users_path().c_str());
    lock.remove();
  } catch (const std::exception&) {
    // The folder is gone, or others are stuck: the file stays.
  }
}

bool is_signed(const Bytes& value) noexcept { return value.size() >= kAdded && text_of(value).starts_with(kMark); }

Bytes SignedStore::with_signature(const std::string& key, const Bytes& value) const {
  const auto signature = signature_of(secret_, key, text_of(value));
  Bytes result;
  result.reserve(kAdded + value.size());
  // Not vector::insert(), for which g++ 12 warns of an overflow that cannot be.
  const auto append = [&](const auto& part) { std::ranges::copy(part, std::back_inserter(result)); };
  append(kMark);
  append(signature);
  append(value);
  return result;
}

Bytes SignedStore::checked(const std::string& key, const Bytes& value) const {
  const auto refuse = [&](const char* why) {
    throw CommError(
        "MU067",
        formatted("the value of '{}' in the store {}: somebody without the job's secret wrote it, or ranks were given "
                  "different secrets. Give all ranks of the job the same one, and nobody else",
                  key, why));
  };
  if (!is_signed(value)) refuse("bears no signature");
  const auto signature = std::span(value).subspan(kMark.size(), cluster::kSignatureBytes);
  if (!cluster::is_signature(signature_of(secret_, key, text_of(value).substr(kAdded)), signature))
    refuse("bears another signature than this job's");
  return {value.begin() + static_cast<std::ptrdiff_t>(kAdded), value.end()};
}

// An empty value stands for a missing key, so it is not signed.
Bytes SignedStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  const auto value = store_->compareSet(key, expected.empty() ? expected : with_signature(key, expected),
                                        with_signature(key, desired));
  return value.empty() ? value : checked(key, value);
}

std::vector<Bytes> SignedStore::multiGet(const std::vector<std::string>& keys) {
  auto values = store_->multiGet(keys);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = checked(keys.at(i), values[i]);
  return values;
}

void SignedStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  auto all = values;
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = with_signature(keys.at(i), all[i]);
  store_->multiSet(keys, all);
}

}  // namespace muster::comm
