#include "comm/shared_memory/process_areas.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <ATen/Parallel.h>

#include "comm/error_text.h"
#include "comm/rank_index.h"
#include "comm/shared_memory/cores.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using Clock = TimePoint::clock;

// Microseconds. About the cost of a wake-up by the system: a rank that waits longer saves nothing by spinning.
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
  // Ordered against a peer that announces its sleep and then looks once more.
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
  // The memory stays until this object is destroyed, because the operation that failed may still be using it.
  for (auto& peer : peers_) peer.link = Link(), peer.process.reset(), peer.messages.clear();
  closed_ = true;
}

void ProcessAreas::wait_for(int peer, int waker, const std::function<bool()>& ready, TimePoint deadline) {
  if (may_spin() && spin(peer, ready, deadline)) return;
  while (!ready()) {
    if (ended_.load(std::memory_order_acquire)) throw_own_end();
    // What a peer wrote before it ended counts, so each of these checks calls ready() again.
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

/// Spins only if that takes no core from a computing thread. In the group's own thread, one more core is needed.
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

// Forms further groups of ranks that share memory, over the links that they already have.

namespace {

constexpr const char* kReady = "ready";

void expect_descriptors(const LinkMessage& message, std::size_t count) {
  if (message.descriptors.size() != count) throw std::runtime_error("this process can open no more files");
}

}  // namespace

std::unique_ptr<SharedAreas> ProcessAreas::split(const std::vector<int>& ranks, const std::string& name) {
  const auto new_rank = rank_index(ranks, rank());
  Forming forming{ranks, name, TimePoint::clock::now() + timeout_, new_rank, new_rank + 1};
  try {
    return form(forming);
  } catch (const std::exception& failure) {
    refuse(forming);
    throw CommError("MU401",
                    formatted("the ranks of group {} on one host could not share memory: {}. Is there memory left in "
                              "the container, and room for open files (ulimit -n)? The backend gloo does without "
                              "shared memory.",
                              name, short_error_text(failure.what())));
  }
}

std::unique_ptr<SharedAreas> ProcessAreas::form(Forming& forming) {
  const auto count = static_cast<int>(forming.ranks.size());
  // Unread wake-ups would leave a peer no room for its offer.
  for (const int member : forming.ranks)
    if (member != rank()) drain(peers_[member]);
  OwnArea own(count);
  std::vector<Neighbour> members(forming.ranks.size());
  for (; forming.offered < count; ++forming.offered)
    members[forming.offered] = offer(forming, forming.offered, own.memory);
  while (forming.heard < forming.new_rank) {
    const int member = forming.heard;
    members[member] = take_offer(forming, member, own.memory);
  }
  for (int member = forming.new_rank + 1; member < count; ++member) expect_reply(forming, members[member]);
  // The two ends of a socket pair both report the process that made it, so a pair cannot tell which process to watch.
  for (int member = 0; member < count; ++member) members[member].process = peers_[forming.ranks[member]].process;
  confirm(forming, members);
  return std::make_unique<ProcessAreas>(forming.new_rank, std::move(own), std::move(members), timeout_);
}

Neighbour ProcessAreas::offer(const Forming& forming, int member, const Segment& own) {
  auto [link, theirs] = Link::make_pair();
  peers_[forming.ranks[member]].link.send(forming.name, {theirs.get(), own.descriptor().get()}, forming.deadline);
  Neighbour neighbour;
  neighbour.link = std::move(link);
  return neighbour;
}

Neighbour ProcessAreas::take_offer(Forming& forming, int member, const Segment& own) {
  LinkMessage message = next_message(forming.ranks[member], forming.name, forming.deadline);
  ++forming.heard;
  if (message.text != forming.name) throw std::runtime_error(formatted("rank {} of the group could not", member));
  expect_descriptors(message, 2);
  Neighbour neighbour;
  neighbour.link = Link(std::move(message.descriptors[0]));
  neighbour.memory = Segment::map(message.descriptors[1], AreaLayout(static_cast<int>(forming.ranks.size())).bytes());
  neighbour.link.send(forming.name, {own.descriptor().get()}, forming.deadline);
  return neighbour;
}

void ProcessAreas::expect_reply(const Forming& forming, Neighbour& member) {
  const LinkMessage reply = member.link.recv(forming.deadline);
  expect_descriptors(reply, 1);
  member.memory = Segment::map(reply.descriptors[0], AreaLayout(static_cast<int>(forming.ranks.size())).bytes());
}

/// No member gets the group unless all members can have it.
void ProcessAreas::confirm(const Forming& forming, const std::vector<Neighbour>& members) {
  for (const auto& member : members)
    if (member.link.descriptor() >= 0) member.link.send(kReady, {}, forming.deadline);
  for (const auto& member : members)
    if (member.link.descriptor() >= 0 && member.link.recv(forming.deadline).text != kReady)
      throw std::runtime_error("the ranks form other groups");
}

void ProcessAreas::refuse(Forming& forming) noexcept {
  const auto deadline = std::min(forming.deadline, TimePoint::clock::now() + std::chrono::seconds(5));
  for (int member = 0; member < static_cast<int>(forming.ranks.size()); ++member) {
    try {
      // A member that has read this rank's offer, or whose offer this rank holds, sees that the other end is closed.
      if (member >= forming.offered) peers_[forming.ranks[member]].link.send(refusal_of(forming.name), {}, deadline);
      else if (member >= forming.heard && member < forming.new_rank)
        next_message(forming.ranks[member], forming.name, deadline);
    } catch (const std::exception&) {
      // That rank is gone, so it waits for nobody.
    }
  }
}

LinkMessage ProcessAreas::next_message(int peer, const std::string& name, TimePoint deadline) {
  Neighbour& from = peers_[peer];
  for (;;) {
    LinkMessage message;
    if (from.messages.empty()) {
      message = from.link.recv(deadline);
    } else {
      message = std::move(from.messages.front());
      from.messages.pop_front();
    }
    if (message.text == name || message.text == refusal_of(name)) return message;
  }
}

// Gives ranks that share memory more of it, for tensors, over the links that they already have.

namespace {

/// Returns an empty segment if the system refuses.
template <class Make>
Segment attempt(Make make) {
  try {
    return make();
  } catch (const std::runtime_error&) {
    return {};
  }
}

}  // namespace

std::shared_ptr<SharedBuffer> ProcessAreas::allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                            TimePoint deadline) {
  const std::string name = formatted("buffer {}", number);
  auto memory = std::make_shared<std::vector<Segment>>(peers_.size());
  Segment& own = memory->at(rank());
  own = attempt([&] { return Segment::make(bytes, access); });
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) offer_buffer(peer, name, own, deadline);
  std::vector<Descriptor> files(peers_.size());
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) files[peer] = take_buffer(peer, name, deadline);
  files[rank()] = own.take_descriptor();
  auto buffer = std::make_shared<SharedBuffer>(SharedBuffer{number, bytes, access});
  if (access == PeerAccess::read_contiguous) {
    memory->push_back(attempt([&] { return Segment::map_contiguous(files, bytes); }));
    buffer->row = memory->back().data();
  }
  bool whole = access != PeerAccess::read_contiguous || buffer->row;
  for (int peer = 0; peer < size(); ++peer) {
    Segment& part = memory->at(peer);
    if (peer != rank() && !buffer->row) part = attempt([&] { return Segment::map(files[peer], bytes, access); });
    buffer->parts.push_back(buffer->row && peer != rank() ? buffer->row + bytes * peer : part.data());
    whole = whole && buffer->parts.back();
  }
  if (!whole) return nullptr;
  buffer->keeps = std::move(memory);
  return buffer;
}

void ProcessAreas::offer_buffer(int peer, const std::string& name, const Segment& own, TimePoint deadline) {
  // Unread wake-ups would leave a peer no room for its offer.
  drain(peers_[peer]);
  try {
    if (own.data()) peers_[peer].link.send(name, {own.descriptor().get()}, deadline);
    else peers_[peer].link.send(refusal_of(name), {}, deadline);
  } catch (const std::runtime_error& failure) {
    throw lost(peer, deadline, failure);
  }
}

Descriptor ProcessAreas::take_buffer(int peer, const std::string& name, TimePoint deadline) {
  LinkMessage message;
  try {
    message = next_message(peer, name, deadline);
  } catch (const std::runtime_error& failure) {
    throw lost(peer, deadline, failure);
  }
  if (message.text != name || message.descriptors.size() != 1) return {};
  return std::move(message.descriptors[0]);
}

TransportFailure ProcessAreas::lost(int peer, TimePoint deadline, const std::runtime_error& failure) {
  const bool late = TimePoint::clock::now() >= deadline;
  return {late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer, failure.what()};
}

}  // namespace muster::comm
