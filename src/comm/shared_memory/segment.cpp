#include "comm/shared_memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster::comm {
namespace {

[[noreturn]] void throw_system_error(const char* call, int error) {
  throw std::system_error(error, std::generic_category(), call);
}

void require_sealed(const Descriptor& descriptor, std::size_t bytes) {
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) throw_system_error("fstat", errno);
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || status.st_size < static_cast<off_t>(bytes))
    throw std::runtime_error("a peer's segment is no sealed memory of the agreed size");
}

}  // namespace

Segment Segment::make(std::size_t bytes, std::size_t allocated, PeerAccess access) {
  Segment segment;
  // The list of a process's mappings shows the name, so it tells whose memory this is.
  const std::string name = "muster " + std::to_string(::getpid());
  segment.descriptor_ = Descriptor(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.descriptor_) throw_system_error("memfd_create", errno);
  const int file = segment.descriptor_.get();
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) throw_system_error("ftruncate", errno);
  segment.allocate(0, allocated);
  segment.map_here(file, bytes, PROT_READ | PROT_WRITE);
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int writes = access == PeerAccess::read ? F_SEAL_FUTURE_WRITE : 0;
  // Kernels before 5.1 do not have the seal that keeps others from writing.
  if (::fcntl(file, F_ADD_SEALS, kSize | writes | F_SEAL_SEAL) != 0 &&
      ::fcntl(file, F_ADD_SEALS, kSize | F_SEAL_SEAL) != 0)
    throw_system_error("seal", errno);
  return segment;
}

void Segment::allocate(std::size_t begin, std::size_t bytes) const {
  // This fails if no memory is left; otherwise the first write would end the process.
  int error = EINTR;
  while (error == EINTR)
    error = ::posix_fallocate(descriptor_.get(), static_cast<off_t>(begin), static_cast<off_t>(bytes));
  if (error) throw_system_error("fallocate", error);
}

Segment Segment::map(const Descriptor& descriptor, std::size_t bytes, PeerAccess access) {
  require_sealed(descriptor, bytes);
  Segment segment;
  segment.map_here(descriptor.get(), bytes, access == PeerAccess::write ? PROT_READ | PROT_WRITE : PROT_READ);
  return segment;
}

Segment Segment::map_contiguous(const std::vector<Descriptor>& descriptors, std::size_t bytes) {
  Segment row;
  const std::size_t all = bytes * descriptors.size();
  // One reservation, so that no other mapping can get between the parts.
  void* address = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw_system_error("mmap", errno);
  row.data_ = static_cast<std::byte*>(address);
  row.bytes_ = all;
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    require_sealed(descriptors[i], bytes);
    if (::mmap(row.data_ + bytes * i, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, descriptors[i].get(), 0) == MAP_FAILED)
      throw_system_error("mmap", errno);
  }
  ::madvise(address, all, MADV_DONTFORK);
  ::madvise(address, all, MADV_DONTDUMP);
  row.notice_ = FaultNotice(row.data_, all);
  return row;
}

std::size_t Segment::page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void Segment::map_here(int descriptor, std::size_t bytes, int protection) {
  void* address = ::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) throw_system_error("mmap", errno);
  data_ = static_cast<std::byte*>(address);
  bytes_ = bytes;
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_DONTDUMP);
  notice_ = FaultNotice(data_, bytes_);
}

Segment::~Segment() {
  notice_ = {};                                                 // before other memory can be mapped there
  if (data_ && !process_.is_forked()) ::munmap(data_, bytes_);  // a fork may have other memory there
}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_),
      notice_(std::move(other.notice_)), process_(other.process_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(notice_, other.notice_);
  std::swap(process_, other.process_);
  return *this;
}

}  // namespace muster::comm
