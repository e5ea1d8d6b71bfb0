#include "input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "muster/base/error.h"

namespace muster::format {
namespace {

[[noreturn]] void refuse_path(const std::filesystem::path& path, const std::string& what) {
  throw CheckpointError("MU200", path.string() + ": " + what);
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

// Without O_NONBLOCK, a pipe of that name would block here until somebody writes to it.
constexpr int kOpenToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) { take(::open(path_.c_str(), kOpenToRead)); }

InputFile::InputFile(int folder, std::filesystem::path path) : path_(std::move(path)) {
  take(::openat(folder, path_.filename().c_str(), kOpenToRead));
}

InputFile::InputFile(std::filesystem::path path, std::uint64_t size, ReadBytes read)
    : path_(std::move(path)), size_(size), read_(std::move(read)) {}

void InputFile::take(int descriptor) {
  descriptor_ = Descriptor(descriptor);
  if (!descriptor_) refuse_path(path_, "cannot be opened for reading (" + reason(errno) + ")");
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  refuse_path(path_, S_ISDIR(status.st_mode) ? "is a folder; name a file in it" : "is not a regular file");
}

void InputFile::read_at(std::uint64_t offset, void* to, std::size_t bytes) const {
  auto* place = static_cast<char*>(to);
  if (!can_be_mapped() && bytes > 0) {
    if (offset > size_ || bytes > size_ - offset)
      refuse_path(path_, "has " + std::to_string(size_) + " bytes, fewer than were asked for");
    return read_(offset, place, bytes);
  }
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_.get(), place, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_path(path_, "cannot be read at byte " + std::to_string(offset) + " (" + reason(errno) + ")");
    if (count == 0)
      refuse_path(path_, "ends at byte " + std::to_string(offset) + ": it was shortened while it was read");
    place += count;
    offset += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
}

std::string InputFile::text(std::uint64_t offset, std::uint64_t bytes) const {
  std::string text(bytes, '\0');
  read_at(offset, text.data(), text.size());
  return text;
}

std::string InputFile::read_text(std::uint64_t limit) const {
  if (size_ > limit)
    refuse_path(path_, "has " + std::to_string(size_) + " bytes, more than the limit of " + std::to_string(limit));
  return text(0, size_);
}

Header read_header(const InputFile& file) {
  std::string start = file.text(0, std::min(file.size(), kLengthBytes));
  const std::uint64_t length = header_length(start, file.size(), file.path().string());
  start += file.text(kLengthBytes, length);
  return parse_header(start, file.size(), file.path().string());
}

MappedFile::MappedFile(const InputFile& file, Access access) : size_(file.size()) {
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* place = ::mmap(nullptr, size_, protection, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
  if (place == MAP_FAILED) refuse_path(file.path(), "cannot be mapped into memory (" + reason(errno) + ")");
  data_ = static_cast<std::byte*>(place);
}

bool MappedFile::is_resident(const InputFile& file, std::uint64_t offset, std::size_t bytes) const {
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t start = offset / page * page, pages = (offset + bytes - start + page - 1) / page;
  struct stat status {};  // pages beyond a new end may still exist, but must not be accessed
  if (::fstat(file.descriptor(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < offset + bytes)
    return false;
  constexpr long kCacheStat = 451;  // Linux 6.5; it counts a large page as one page, unlike mincore
  const std::array<std::uint64_t, 2> range = {start, pages * page};
  std::array<std::uint64_t, 5> counts = {};
  if (::syscall(kCacheStat, file.descriptor(), range.data(), counts.data(), 0) == 0) return counts[0] >= pages;
  std::vector<unsigned char> found(pages);
  return ::mincore(data_ + start, offset + bytes - start, found.data()) == 0 &&
         std::all_of(found.begin(), found.end(), [](unsigned char one) { return one & 1; });
}

bool MappedFile::copy_to(const InputFile& file, void* to, std::uint64_t offset, std::size_t bytes) const {
  if (!is_resident(file, offset, bytes)) return false;
  std::memcpy(to, data_ + offset, bytes);
  return true;
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

}  // namespace muster::format
