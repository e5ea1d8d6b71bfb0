#include "comm/shared_memory/process_areas.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <ATen/Parallel.h>

#include "comm/error_text.h"
#include "comm/shared_memory/cores.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using Clock = TimePoint::clock;

// About what a wake-up by the system costs: whoever waits longer saves nothing by spinning.
constexpr std::chrono::microseconds kSpin{60};
constexpr int kLooksPerClock = 64;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

OwnArea::OwnArea(int size)
    : memory(Segment::make(AreaLayout(size).bytes(), AreaLayout(size).bytes_at_first())),
      event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event) throw std::system_error(errno, std::generic_category(), "eventfd");
  reinterpret_cast<Control*>(memory.data())->cores = own_cores();
}

ProcessAreas::ProcessAreas(int rank, OwnArea own, std::vector<Neighbour> peers, std::chrono::milliseconds timeout)
    : SharedAreas(rank, static_cast<int>(peers.size())), timeout_(timeout), own_(std::move(own)),
      peers_(std::move(peers)) {
  set_area(rank, own_.memory.data());
  CoreMask cores = control(rank).cores;
  own_cores_ = count(cores);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    set_area(peer, peers_[peer].memory.data());
    if (!peers_[peer].process)
      peers_[peer].process = std::make_shared<const Descriptor>(peers_[peer].link.watch_process());
    cores = united(cores, control(peer).cores);
  }
  group_cores_ = std::min(count(cores), granted_cores());
}

void ProcessAreas::notify_all() {
  if (ended_.load(std::memory_order_acquire)) throw_own_end();
  // Ordered against a peer that says it sleeps and then looks once more.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const uint64_t sleep = control(peer).parked.load(std::memory_order_relaxed);
    if (sleep == 0 || sleep == peers_[peer].woken || !Sleep::is_for(sleep, rank())) continue;
    peers_[peer].woken = sleep;
    peers_[peer].link.wake();
  }
}

void ProcessAreas::abort(const std::string& cause) noexcept {
  std::lock_guard lock(mutex_);
  if (ended_.load(std::memory_order_relaxed)) return;
  cause_ = cause;
  write_cause(cause);
  ended_.store(true, std::memory_order_release);
  wake_everybody();
}

void ProcessAreas::close() noexcept {
  std::lock_guard lock(mutex_);
  if (!ended_.load(std::memory_order_relaxed)) cause_ = "the group is closed";
  ended_.store(true, std::memory_order_release);
  // The memory stays until this object ends: the operation that failed may still be on its way out of it.
  for (auto& peer : peers_) peer.link = Link(), peer.process.reset(), peer.messages.clear();
  closed_ = true;
}

void ProcessAreas::wait_for(int peer, int waker, const std::function<bool()>& ready, TimePoint deadline) {
  if (may_spin() && spin(peer, ready, deadline)) return;
  while (!ready()) {
    if (ended_.load(std::memory_order_acquire)) throw_own_end();
    // What a peer wrote before it ended counts, so each of these looks again.
    if (const int who = aborting_rank(peer); who >= 0) {
      if (ready()) return;
      throw cause_of(who);
    }
    if (peer >= 0 && peers_[peer].gone) {
      if (ready()) return;
      throw TransportFailure{TransportFailure::Kind::closed, peer, "its process has ended or left the group"};
    }
    if (Clock::now() >= deadline) throw TransportFailure{TransportFailure::Kind::timeout, peer, ""};
    park(waker, ready, deadline);
  }
}

/// Only where no thread that computes loses its core by it: a thread of the group's own needs one more.
bool ProcessAreas::may_spin() const {
  const int threads = at::get_num_threads() + (std::this_thread::get_id() == home_ ? 0 : 1);
  return own_cores_ >= threads && group_cores_ >= size() * threads;
}

bool ProcessAreas::spin(int peer, const std::function<bool()>& ready, TimePoint deadline) const {
  const auto end = std::min(deadline, Clock::now() + kSpin);
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (ready()) return true;
      relax();
    }
    if (ended_.load(std::memory_order_acquire) || aborting_rank(peer) >= 0) return false;
  } while (Clock::now() < end);
  return false;
}

void ProcessAreas::park(int waker, const std::function<bool()>& ready, TimePoint deadline) {
  Control& own = control(rank());
  own.parked.store(Sleep::pack(++sleeps_, waker), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ready() && aborting_rank(-1) < 0) sleep(deadline);
  own.parked.store(0, std::memory_order_relaxed);
}

void ProcessAreas::sleep(TimePoint deadline) {
  std::vector<pollfd> polled{{own_.event.get(), POLLIN, 0}};
  std::vector<int> whose{-1};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || peers_[peer].gone) continue;
    for (const int descriptor : {peers_[peer].link.descriptor(), peers_[peer].process->get()})
      if (descriptor >= 0) polled.push_back({descriptor, POLLIN, 0}), whose.push_back(peer);
  }
  const auto left = std::min<int64_t>(left_until(deadline).count(), 1'000'000);
  if (::poll(polled.data(), polled.size(), static_cast<int>(left)) <= 0) return;
  for (std::size_t i = 1; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    Neighbour& peer = peers_[whose[i]];
    if (polled[i].fd == peer.process->get()) peer.gone = true;
    else drain(peer);
  }
}

void ProcessAreas::drain(Neighbour& peer) {
  for (;;) {
    LinkMessage message;
    switch (peer.link.take(message)) {
      case Link::Arrival::nothing: return;
      case Link::Arrival::wake: break;
      case Link::Arrival::message: peer.messages.push_back(std::move(message)); break;
      case Link::Arrival::end: peer.gone = true; return;
    }
  }
}

void ProcessAreas::allocate(std::size_t begin, std::size_t bytes) {
  try {
    own_.memory.allocate(begin, bytes);
  } catch (const std::system_error& refusal) {
    throw CommError(
        "MU402", formatted("rank {} found no memory for the {} KiB through which its tensors pass to the other ranks "
                           "of its host: {}. Free memory, or raise the limit of the container; the backend gloo "
                           "does without shared memory.",
                           global_rank(), bytes / 1024, short_error_text(refusal.what())));
  }
}

void ProcessAreas::wake_everybody() noexcept {
  if (closed_) return;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) peers_[peer].link.wake();
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(own_.event.get(), &one, sizeof(one));
}

void ProcessAreas::throw_own_end() {
  std::lock_guard lock(mutex_);
  throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
}

}  // namespace muster::comm
