#include "atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPartSuffix = ".partial";

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// Copies owner, group and mode of `former`. If the group cannot be set, the new file's group gets only the permissions
/// of "others".
void give_rights(int descriptor, const struct stat& former) {
  mode_t mode = former.st_mode & 0777;
  struct stat now {};
  if (::fstat(descriptor, &now) == 0 && now.st_uid != former.st_uid) [[maybe_unused]]
    const int owner = ::fchown(descriptor, former.st_uid, static_cast<gid_t>(-1));
  if (now.st_gid != former.st_gid && ::fchown(descriptor, static_cast<uid_t>(-1), former.st_gid) != 0)
    mode &= ~070u | (mode << 3 & 070u);
  ::fchmod(descriptor, mode);
}

/// A living writer holds a lock on its partial file, so a file that can be locked has lost its writer.
void remove_if_abandoned(const fs::path& part) {
  const Descriptor descriptor(::open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (descriptor && ::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(part.c_str());
}

void remove_abandoned_parts(const fs::path& path) {
  const std::string prefix = "." + path.filename().string() + ".";
  for (const fs::path& part : paths_in(folder_of(path))) {
    const std::string name = part.filename().string();
    if (name.starts_with(prefix) && name.ends_with(kPartSuffix)) remove_if_abandoned(part);
  }
}

}  // namespace

AtomicFile::AtomicFile(fs::path path, Durability durability) : path_(std::move(path)), durability_(durability) {
  if (!path_.has_filename()) fail("it has no file name", EISDIR);
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) fail("a folder has that name", EISDIR);
  remove_abandoned_parts(path_);
  open_part();
}

void AtomicFile::open_part() {
  struct stat former {};
  const bool replaces = ::stat(path_.c_str(), &former) == 0;
  for (;;) {
    part_ = folder_of(path_) / ("." + path_.filename().string() + "." + random_word() + std::string(kPartSuffix));
    // A replacement of a file that others may not read is never open to them, not even before its first byte.
    descriptor_ = Descriptor(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? 0600 : 0666));
    if (!descriptor_ && errno == EEXIST) continue;
    if (!descriptor_) fail("nothing can be written in its folder", errno);
    // Another writer of this name may take the unlocked partial file for abandoned: then it holds the lock, or has
    // removed the file.
    const bool is_taken = ::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat status {};
    if (is_taken || ::fstat(descriptor_.get(), &status) != 0 || status.st_nlink == 0) {
      ::unlink(part_.c_str());
      descriptor_.close();
      continue;
    }
    if (replaces) give_rights(descriptor_.get(), former);
    return;
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_) ::unlink(part_.c_str());
}

void AtomicFile::fail(std::string_view what, int error) const {
  throw CheckpointError("MU202", path_.string() + " was not written: " + std::string(what) + " (" +
                                     std::generic_category().message(error) + ", after " + std::to_string(written_) +
                                     " bytes); what was there before is unchanged");
}

void AtomicFile::reserve(std::uint64_t bytes) {
  while (bytes > 0 && ::fallocate(descriptor_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
    if (errno != EINTR) fail("there is no space for its " + std::to_string(bytes) + " bytes", errno);
  }
}

void AtomicFile::write(std::span<const std::string_view> pieces) {
  std::vector<iovec> rest;
  rest.reserve(pieces.size());
  for (const std::string_view piece : pieces)
    if (!piece.empty()) rest.push_back({const_cast<char*>(piece.data()), piece.size()});
  for (std::size_t next = 0; next < rest.size();) {
    const auto count = static_cast<int>(std::min<std::size_t>(rest.size() - next, IOV_MAX));
    const ssize_t result = ::writev(descriptor_.get(), &rest[next], count);
    if (result < 0 && errno == EINTR) continue;
    if (result <= 0) fail("the disk refused the write", result == 0 ? ENOSPC : errno);
    auto done = static_cast<std::size_t>(result);
    written_ += done;
    for (; next < rest.size() && done >= rest[next].iov_len; ++next) done -= rest[next].iov_len;
    if (done > 0) rest[next] = {static_cast<char*>(rest[next].iov_base) + done, rest[next].iov_len - done};
  }
}

void AtomicFile::finish() {
  if (!finished_ && durability_ != Durability::none && ::fsync(descriptor_.get()) != 0)
    fail("its bytes did not reach the disk", errno);
  finished_ = true;
}

void AtomicFile::publish() {
  finish();
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("it could not be renamed into place", errno);
  descriptor_.close();
  if (durability_ == Durability::full) sync_folder(folder_of(path_));
}

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored))
    paths.push_back(entry->path());
  return paths;
}

void sync_folder(const fs::path& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor && (::fsync(descriptor.get()) == 0 || errno == EINVAL)) return;
  const int error = errno;
  throw CheckpointError("MU202", "the names in " + folder.string() + " did not reach the medium (" +
                                     std::generic_category().message(error) + ")");
}

/// Bytes per write. Bytes read for a checksum are still in the processor's cache when the kernel copies them; and in
/// one large write the kernel uses the largest pages it has, which are cheaper to write and to map.
constexpr std::size_t kBytesPerWrite = std::size_t{4} << 20;
constexpr std::size_t kPiecesPerWrite = 1024;  // limit on pieces per write

BlockFile::BlockFile(std::unique_ptr<OutputFile> file, std::uint64_t bytes) : file_(std::move(file)) {
  file_->reserve(bytes);
}

void BlockFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kBytesPerWrite - waiting_bytes_);
    bytes.remove_prefix(piece.size());
    waiting_.push_back(piece);
    waiting_bytes_ += piece.size();
    if (waiting_bytes_ == kBytesPerWrite || waiting_.size() == kPiecesPerWrite) flush();
  }
}

void BlockFile::add_to_checksums(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, static_cast<std::size_t>(kBlockBytes - block_filled_));
    block_.update(piece.data(), piece.size());
    block_filled_ += piece.size();
    bytes.remove_prefix(piece.size());
    if (block_filled_ < kBlockBytes) continue;
    checksums_.push_back(block_.value());
    block_.reset();
    block_filled_ = 0;
  }
}

void BlockFile::flush() {
  for (const std::string_view piece : waiting_) add_to_checksums(piece);
  file_->write(waiting_);
  waiting_.clear();
  waiting_bytes_ = 0;
}

std::vector<std::uint64_t> BlockFile::publish() {
  flush();
  if (block_filled_ > 0) checksums_.push_back(block_.value());
  block_filled_ = 0;
  file_->publish();
  return checksums_;
}

}  // namespace muster::format
