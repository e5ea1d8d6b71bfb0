#include "comm/shared_memory/segment.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "comm/fork_check.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster::comm {
namespace {

/// Explains faults in memory that this process must not write, and that its forked children do not have. While an
/// object of this class exists, an access to that memory, which ends the process, first prints the reason. Other faults
/// go to the previous handler. Thread-safe.
class FaultNotice {
 public:
  FaultNotice(const std::byte* data, std::size_t bytes) {
    for (auto* range = first_range.load(std::memory_order_acquire); range && !range_; range = range->next)
      if (!range->taken.exchange(true, std::memory_order_acquire)) range_ = range;
    if (!range_) {
      range_ = new Range;  // never freed, because a handler may walk the list
      range_->next = first_range.load(std::memory_order_relaxed);
      while (!first_range.compare_exchange_weak(range_->next, range_, std::memory_order_release)) {}
    }
    range_->begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
    range_->bytes.store(bytes, std::memory_order_release);
  }
  ~FaultNotice() {
    range_->bytes.store(0, std::memory_order_relaxed);
    range_->taken.store(false, std::memory_order_release);
  }
  FaultNotice(const FaultNotice&) = delete;
  FaultNotice& operator=(const FaultNotice&) = delete;

  /// Whether the address lies in the memory of any object. For signal handlers.
  static bool covers(const void* address) noexcept {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (auto* range = first_range.load(std::memory_order_acquire); range; range = range->next)
      if (at - range->begin.load(std::memory_order_relaxed) < range->bytes.load(std::memory_order_acquire)) return true;
    return false;
  }

 private:
  /// An entry of a list that only grows, because a handler may walk it at any time. An entry without bytes is free.
  struct Range {
    std::atomic<uintptr_t> begin{0};
    std::atomic<std::size_t> bytes{0};
    std::atomic<bool> taken{true};
    Range* next = nullptr;
  };

  static inline std::atomic<Range*> first_range{nullptr};
  Range* range_ = nullptr;
};

struct sigaction before = {};

pid_t process = 0;  // a forked child has a different one

constexpr int kFrames = 16;
constexpr const char* kWrite =
    "muster: error: MU162: a raw pointer (data_ptr, accessor, memcpy, from_blob) writes a parameter that is sharded, "
    "and that the ranks of this host have in common: the process ends, at the place above. Write through pointers only "
    "in summon_full_params with .writeback = true; load weights by load_model(model, path); or switch "
    "one_copy_per_host off\n";
constexpr const char* kChild =
    "muster: error: MU162: a forked child uses a parameter or a gradient that the ranks of this host have in common, "
    "which a child does not have: it ends, at the place above. Copy what it needs before the fork, or switch "
    "one_copy_per_host off (parameters), or choose the backend gloo\n";

/// Prints the text last, because launchers show the last lines of a process that has failed.
void report() {
  void* frames[kFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kFrames), STDERR_FILENO);
  const char* text = ::getpid() == process ? kWrite : kChild;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // sent by kill(), so the access is not repeated
  if (!sent && FaultNotice::covers(info->si_addr)) report();
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  ::signal(signal, SIG_DFL);  // the access is repeated and ends the process
  if (sent) ::raise(signal);
}

bool install() {
  void* warm[1];
  ::backtrace(warm, 1);  // loads the libraries that it needs now instead of in the handler
  process = ::getpid();
  struct sigaction action = {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  ::sigaction(SIGSEGV, nullptr, &before);
  return ::sigaction(SIGSEGV, &action, nullptr) == 0;
}

[[noreturn]] void throw_system_error(const char* call, int error) {
  throw std::system_error(error, std::generic_category(), call);
}

void require_sealed(const Descriptor& descriptor, std::size_t bytes) {
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) throw_system_error("fstat", errno);
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || status.st_size < static_cast<off_t>(bytes))
    throw std::runtime_error("a peer's segment is not sealed memory of the agreed size");
}

/// Mapped memory.
class Mapping {
 public:
  Mapping(std::size_t bytes, int protection, int flags, int file)
      : data_(::mmap(nullptr, bytes, protection, flags, file, 0)), bytes_(bytes) {
    if (data_ == MAP_FAILED) throw_system_error("mmap", errno);
  }
  ~Mapping() {
    notice_.reset();                                     // before other memory can be mapped there
    if (!process_.is_forked()) ::munmap(data_, bytes_);  // a fork may have other memory there
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  /// Keeps the memory from children and core dumps, and explains faults in it. Call it once all of it is mapped.
  void guard() {
    [[maybe_unused]] static const bool installed = install();
    ::madvise(data_, bytes_, MADV_DONTFORK);
    ::madvise(data_, bytes_, MADV_DONTDUMP);
    notice_.emplace(data(), bytes_);
  }

 private:
  void* const data_;
  const std::size_t bytes_;
  std::optional<FaultNotice> notice_;
  const ForkCheck process_;
};

std::shared_ptr<std::byte> mapped(const Descriptor& file, std::size_t bytes, int protection) {
  const auto mapping = std::make_shared<Mapping>(bytes, protection, MAP_SHARED, file.get());
  mapping->guard();
  return {mapping, mapping->data()};
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
  segment.memory_ = mapped(segment.descriptor_, bytes, PROT_READ | PROT_WRITE);
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
  segment.memory_ = mapped(descriptor, bytes, access == PeerAccess::write ? PROT_READ | PROT_WRITE : PROT_READ);
  return segment;
}

Segment Segment::map_contiguous(const std::vector<Descriptor>& descriptors, std::size_t bytes) {
  // One reservation, so that no other mapping can get between the parts.
  const auto mapping =
      std::make_shared<Mapping>(bytes * descriptors.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  std::byte* part = mapping->data();
  for (const auto& descriptor : descriptors) {
    require_sealed(descriptor, bytes);
    if (::mmap(part, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, descriptor.get(), 0) == MAP_FAILED)
      throw_system_error("mmap", errno);
    part += bytes;
  }
  mapping->guard();
  Segment row;
  row.memory_ = {mapping, mapping->data()};
  return row;
}

std::size_t Segment::page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace muster::comm
