#include "base/signals.h"

#include <array>
#include <atomic>
#include <csignal>

#include "base/mutex.h"

namespace muster {
namespace {

constexpr int kSignals = 65;  // signal numbers on Linux: 1 to 64

// A handler runs without arguments, so what it records must be in static memory.
struct Post {
  std::atomic<uint32_t> arrivals{0};
  std::atomic<bool> calls_before{false};  // true if `replaced` is a function; constant while a watch lives
  struct sigaction replaced = {};
  int watches = 0;
};

std::array<Post, kSignals>& posts() {
  static std::array<Post, kSignals> all;
  return all;
}

/// Guards `watches`, and the changes of `replaced`.
base::Mutex& posts_mutex() {
  static base::Mutex mutex;
  return mutex;
}

static_assert(std::atomic<uint32_t>::is_always_lock_free);

void note_signal(int signal, siginfo_t* info, void* context) {
  auto& post = posts()[static_cast<size_t>(signal)];
  post.arrivals.fetch_add(1, std::memory_order_relaxed);
  if (!post.calls_before.load(std::memory_order_acquire)) return;
  if (post.replaced.sa_flags & SA_SIGINFO) post.replaced.sa_sigaction(signal, info, context);
  else post.replaced.sa_handler(signal);
}

uint32_t arrivals(int signal) { return posts()[static_cast<size_t>(signal)].arrivals.load(std::memory_order_relaxed); }

}  // namespace

SignalWatch::SignalWatch(const std::vector<int>& signals) {
  const base::Lock lock(posts_mutex());
  for (const int signal : signals) {
    if (signal < 1 || signal >= kSignals) continue;
    auto& post = posts()[static_cast<size_t>(signal)];
    if (post.watches++ == 0) {
      struct sigaction action = {};
      action.sa_sigaction = note_signal;
      action.sa_flags = SA_RESTART | SA_SIGINFO;
      sigaction(signal, nullptr, &post.replaced);
      const bool has_info = (post.replaced.sa_flags & SA_SIGINFO) != 0;
      post.calls_before.store(has_info || (post.replaced.sa_handler != SIG_DFL && post.replaced.sa_handler != SIG_IGN),
                              std::memory_order_release);
      sigaction(signal, &action, nullptr);
    }
    watched_.push_back({signal, arrivals(signal)});
  }
}

SignalWatch::~SignalWatch() {
  const base::Lock lock(posts_mutex());
  for (const auto& watched : watched_) {
    auto& post = posts()[static_cast<size_t>(watched.signal)];
    if (--post.watches > 0) continue;
    sigaction(watched.signal, &post.replaced, nullptr);
    post.calls_before = false;
  }
}

int SignalWatch::received() const noexcept {
  for (const auto& watched : watched_)
    if (arrivals(watched.signal) != watched.seen) return watched.signal;
  return 0;
}

void SignalWatch::forget(int signal) noexcept {
  for (auto& watched : watched_)
    if (watched.signal == signal) watched.seen = arrivals(signal);
}

}  // namespace muster
