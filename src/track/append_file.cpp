#include "append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "base/log.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::track {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{4} << 20;  // limit on waiting records in bytes

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

void refuse_write(const std::filesystem::path& path, const std::string& reason) {
  throw Error("MU422", log::str("values logged to ", in_quotes(path.string()), " cannot be written (", reason,
                                "); training goes on"));
}

AppendFile::AppendFile(std::filesystem::path path, const WholeBytes& whole)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError("MU421",
                      log::str("the file ", in_quotes(path_.string()), " for the run's values cannot be opened (", why,
                               "); give another root or version"));
  };
  if (!descriptor_) refuse(reason(errno));
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse("no regular file");
  // The process owns the lock. Without support for locks, a second run is not detected.
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) refuse("another run writes it");
  written_ = static_cast<uint64_t>(status.st_size);
  if (written_ == 0 || !whole) return;
  written_ = std::min(written_, whole(path_));
  [[maybe_unused]] const int cut = ::ftruncate(descriptor_.get(), static_cast<off_t>(written_));
}

void AppendFile::add(std::string_view record) {
  if (!waiting_.empty() && waiting_.size() + record.size() > kMostWaiting) {
    flush();  // throws while the disk is full, and so drops the record
  }
  waiting_ += record;
  ends_.push_back(waiting_.size());
}

std::size_t write_at(int descriptor, std::string_view bytes, uint64_t offset) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto count =
        ::pwrite(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

// Writes at a known offset, so that half-written data of an earlier call or process is overwritten.
void AppendFile::flush() {
  const auto done = write_at(descriptor_.get(), waiting_, written_);
  const int error = done < waiting_.size() ? errno : 0;
  const auto whole = std::upper_bound(ends_.begin(), ends_.end(), done);
  const std::size_t kept = whole == ends_.begin() ? 0 : *(whole - 1);
  written_ += kept;
  waiting_.erase(0, kept);
  ends_.erase(ends_.begin(), whole);
  for (auto& end : ends_) end -= kept;
  if (error == 0) return;
  [[maybe_unused]] const int cut = ::ftruncate(descriptor_.get(), static_cast<off_t>(written_));
  refuse_write(path_, reason(error));
}

std::string AppendFile::read_lines(uint64_t begin, std::size_t most) const {
  std::string text;
  for (uint64_t size = std::min<uint64_t>(most, written_ - std::min(begin, written_)); size > 0; size *= 2) {
    size = std::min(size, written_ - begin);
    text.resize(size);
    const auto count = ::pread(descriptor_.get(), text.data(), size, static_cast<off_t>(begin));
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    text.resize(text.rfind('\n') + 1);
    if (!text.empty() || size == written_ - begin) break;
  }
  return text;
}

void AppendFile::clear() {
  if (::ftruncate(descriptor_.get(), 0) != 0) refuse_write(path_, reason(errno));
  written_ = 0;
}

void replace_file(const std::filesystem::path& path, std::string_view content) {
  auto beside = path;
  beside += ".new";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(beside, path, error);
  if (!file || error) refuse_write(path, error ? error.message() : reason(errno));
}

bool leads_out(const std::filesystem::path& path) {
  return path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end();
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t whole_lines(const std::filesystem::path& path) { return file_text(path).rfind('\n') + 1; }

}  // namespace muster::track
