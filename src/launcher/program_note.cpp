#include "program_note.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "fork_protocol.h"

namespace muster::launcher {
namespace {

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);

constexpr std::size_t kMostNotes = std::size_t{1} << 16;  // limit in bytes; a linker writes a few hundred
constexpr std::size_t kMostSegments = 1024;               // limit on program headers in a file

bool read_at(int file, std::size_t offset, void* to, std::size_t size) {
  return pread(file, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

bool is_program(const Header& header) {
  constexpr auto kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == kClass &&
         (header.e_type == ET_EXEC || header.e_type == ET_DYN) && header.e_phentsize == sizeof(Segment) &&
         header.e_phnum <= kMostSegments;
}

std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

/// Iterates over notes, each of which begins at a multiple of 4.
bool contains_fork_note(std::string_view notes) {
  const ForkNote wanted;
  while (notes.size() >= 3 * sizeof(std::uint32_t)) {
    std::uint32_t sizes[2];
    std::memcpy(sizes, notes.data(), sizeof sizes);
    if (notes.size() >= sizeof wanted && std::memcmp(notes.data(), &wanted, sizeof wanted) == 0) return true;
    const auto whole = 3 * sizeof(std::uint32_t) + padded(sizes[0]) + padded(sizes[1]);
    notes.remove_prefix(std::min(whole, notes.size()));
  }
  return false;
}

}  // namespace

bool can_be_fork_server(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  Header header;
  if (!file || fstat(file.get(), &status) != 0 || (status.st_mode & (S_ISUID | S_ISGID)) ||
      !read_at(file.get(), 0, &header, sizeof header) || !is_program(header))
    return false;
  std::vector<Segment> segments(header.e_phnum);
  if (!read_at(file.get(), header.e_phoff, segments.data(), segments.size() * sizeof(Segment))) return false;
  return std::any_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    std::string notes(segment.p_type == PT_NOTE && segment.p_filesz <= kMostNotes ? segment.p_filesz : 0, '\0');
    return read_at(file.get(), segment.p_offset, notes.data(), notes.size()) && contains_fork_note(notes);
  });
}

}  // namespace muster::launcher
