#include "comm/shared_memory/faults.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

namespace muster::comm {

/// An entry of a list that only grows, because a handler may walk it at any time. An entry without bytes is free.
struct FaultNotice::Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> taken{true};
  Range* next = nullptr;
};

struct Faults {
  static std::atomic<FaultNotice::Range*> first;
  static bool covers(const void* address) noexcept {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (auto* range = first.load(std::memory_order_acquire); range; range = range->next)
      if (at - range->begin.load(std::memory_order_relaxed) < range->bytes.load(std::memory_order_acquire)) return true;
    return false;
  }
};
std::atomic<FaultNotice::Range*> Faults::first{nullptr};

namespace {

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
  if (!sent && Faults::covers(info->si_addr)) report();
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

}  // namespace

FaultNotice::FaultNotice(const std::byte* data, std::size_t bytes) {
  [[maybe_unused]] static const bool installed = install();
  for (auto* range = Faults::first.load(std::memory_order_acquire); range && !range_; range = range->next)
    if (!range->taken.exchange(true, std::memory_order_acquire)) range_ = range;
  if (!range_) {
    range_ = new Range;  // never freed, because a handler may walk the list
    range_->next = Faults::first.load(std::memory_order_relaxed);
    while (!Faults::first.compare_exchange_weak(range_->next, range_, std::memory_order_release)) {}
  }
  range_->begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
  range_->bytes.store(bytes, std::memory_order_release);
}

FaultNotice::~FaultNotice() {
  if (!range_) return;
  range_->bytes.store(0, std::memory_order_relaxed);
  range_->taken.store(false, std::memory_order_release);
}

FaultNotice::FaultNotice(FaultNotice&& other) noexcept : range_(std::exchange(other.range_, nullptr)) {}

FaultNotice& FaultNotice::operator=(FaultNotice&& other) noexcept {
  std::swap(range_, other.range_);
  return *this;
}

}  // namespace muster::comm
