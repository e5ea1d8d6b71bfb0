#include "comm/shared_memory/process_areas.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>

#include "comm/pieces.h"
#include "comm/shared_memory/link.h"
#include "comm/words.h"
#include "muster/base/detail/environment.h"
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
#else
  std::this_thread::yield();
#endif
}

int usable_cores() {
  cpu_set_t cores;
  int count = ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  // The quota of a container: "200000 100000" are two cores.
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0, period = 0;
  if (file >> quota >> period && period > 0) count = std::min(count, std::max(1, static_cast<int>(quota / period)));
  return count;
}

/// A peer, as this rank sees it.
struct Neighbour {
  Link link;
  Descriptor process;
  Segment memory;
  std::deque<LinkMessage> messages{};
  uint64_t woken = 0;  ///< the last of its sleeps that this rank ended
  bool gone = false;
};

class ProcessAreas final : public SharedAreas {
 public:
  ProcessAreas(int rank, Segment own, std::vector<Neighbour> peers, std::chrono::milliseconds timeout)
      : SharedAreas(rank, static_cast<int>(peers.size())), timeout_(timeout), own_(std::move(own)),
        peers_(std::move(peers)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), cores_(usable_cores()) {
    own_.close_descriptor();
    set_area(rank, own_.data());
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank) continue;
      set_area(peer, peers_[peer].memory.data());
      if (!peers_[peer].process) peers_[peer].process = peers_[peer].link.watch_process();
    }
  }
  ~ProcessAreas() override { close(); }

  void publish() override {
    if (ended_.load(std::memory_order_acquire)) throw_own_end();
    // Ordered against a peer that says it sleeps and then looks once more.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const uint64_t sleep = control(peer).parked.load(std::memory_order_relaxed);
      if (sleep == 0 || sleep == peers_[peer].woken) continue;
      peers_[peer].woken = sleep;
      peers_[peer].link.wake();
    }
  }

  void abort(const std::string& cause) noexcept override {
    std::lock_guard lock(mutex_);
    if (ended_.load(std::memory_order_relaxed)) return;
    cause_ = cause;
    write_cause(cause);
    ended_.store(true, std::memory_order_release);
    wake_everybody();
  }

  void close() noexcept override {
    std::lock_guard lock(mutex_);
    if (!ended_.load(std::memory_order_relaxed)) cause_ = "the group is closed";
    ended_.store(true, std::memory_order_release);
    // The memory stays until this object ends: the operation that failed may still be on its way out of it.
    for (auto& peer : peers_) peer.link = Link(), peer.process.reset();
    closed_ = true;
  }

  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) override;

 protected:
  void wait_for(int peer, const std::function<bool()>& ready, TimePoint deadline) override {
    if (may_spin() && spin(peer, ready, deadline)) return;
    while (!ready()) {
      if (ended_.load(std::memory_order_acquire)) throw_own_end();
      if (const int who = aborting_rank(peer); who >= 0 && !ready()) throw cause_of(who);
      if (peer >= 0 && peers_[peer].gone && !ready())
        throw TransportFailure{TransportFailure::Kind::closed, peer, "its process has ended or left the group"};
      if (Clock::now() >= deadline) throw TransportFailure{TransportFailure::Kind::timeout, peer, ""};
      park(ready, deadline);
    }
  }

 private:
  /// Only where no thread that computes loses its core by it: the group's own thread needs one more.
  bool may_spin() const {
    const int threads = at::get_num_threads() + (std::this_thread::get_id() == home_ ? 0 : 1);
    return cores_ >= size() * threads;
  }

  bool spin(int peer, const std::function<bool()>& ready, TimePoint deadline) const {
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

  void park(const std::function<bool()>& ready, TimePoint deadline) {
    Control& own = control(rank());
    own.parked.store(++sleeps_, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ready() && aborting_rank(-1) < 0) sleep(deadline);
    own.parked.store(0, std::memory_order_relaxed);
  }

  void sleep(TimePoint deadline) {
    std::vector<pollfd> polled{{event_.get(), POLLIN, 0}};
    std::vector<int> whose{-1};
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank() || peers_[peer].gone) continue;
      for (const int descriptor : {peers_[peer].link.descriptor(), peers_[peer].process.get()})
        if (descriptor >= 0) polled.push_back({descriptor, POLLIN, 0}), whose.push_back(peer);
    }
    const auto left = std::min<int64_t>(left_until(deadline).count(), 1'000'000);
    if (::poll(polled.data(), polled.size(), static_cast<int>(left)) <= 0) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      Neighbour& peer = peers_[whose[i]];
      if (polled[i].fd == peer.process.get()) peer.gone = true;
      else drain(peer);
    }
  }

  static void drain(Neighbour& peer) {
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

  void wake_everybody() noexcept {
    if (closed_) return;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) peers_[peer].link.wake();
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
  }

  [[noreturn]] void throw_own_end() {
    std::lock_guard lock(mutex_);
    throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
  }

  LinkMessage next_message(int peer, TimePoint deadline) {
    auto& messages = peers_[peer].messages;
    if (messages.empty()) return peers_[peer].link.recv(deadline);
    LinkMessage message = std::move(messages.front());
    messages.pop_front();
    return message;
  }

  Neighbour offer(int peer, const Segment& own, const std::string& name);
  void refuse_offers(const std::vector<int>& ranks, Range unanswered, int offered) noexcept;
  static Neighbour accept_offer(LinkMessage message, const Segment& own, const std::string& name, std::size_t bytes);

  const std::chrono::milliseconds timeout_;  // to form a group
  Segment own_;
  std::vector<Neighbour> peers_;
  const Descriptor event_;
  const int cores_;
  const std::thread::id home_ = std::this_thread::get_id();
  uint64_t sleeps_ = 0;
  std::atomic<bool> ended_ = false;

  std::mutex mutex_;
  bool closed_ = false;
  std::string cause_;
};

Neighbour ProcessAreas::offer(int peer, const Segment& own, const std::string& name) {
  auto [link, theirs] = Link::make_pair();
  peers_[peer].link.send(name, {theirs.get(), own.descriptor().get()});
  Neighbour neighbour;
  neighbour.link = std::move(link);
  return neighbour;
}

Neighbour ProcessAreas::accept_offer(LinkMessage message, const Segment& own, const std::string& name,
                                     std::size_t bytes) {
  if (message.text != name || message.descriptors.size() != 2) throw std::runtime_error("the ranks form other groups");
  Neighbour neighbour;
  neighbour.link = Link(std::move(message.descriptors[0]));
  neighbour.memory = Segment::map(message.descriptors[1], bytes);
  neighbour.link.send(name, {own.descriptor().get()});
  return neighbour;
}

std::unique_ptr<SharedAreas> ProcessAreas::split(const std::vector<int>& ranks, const std::string& name) {
  const auto count = static_cast<int>(ranks.size());
  const auto place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  const std::size_t bytes = AreaLayout(count).bytes();
  const auto deadline = Clock::now() + timeout_;
  int answered = 0, offered = place + 1;
  try {
    Segment own = Segment::make(bytes);
    std::vector<Neighbour> peers(ranks.size());
    for (; offered < count; ++offered) peers[offered] = offer(ranks[offered], own, name);
    while (answered < place) {
      LinkMessage message = next_message(ranks[answered], deadline);
      peers[answered++] = accept_offer(std::move(message), own, name, bytes);
    }
    for (int other = place + 1; other < count; ++other) {
      LinkMessage reply = peers[other].link.recv(deadline);
      if (reply.text != name || reply.descriptors.size() != 1) throw std::runtime_error("the ranks form other groups");
      peers[other].memory = Segment::map(reply.descriptors[0], bytes);
    }
    // A pair of sockets names the process that made it at both ends, so that it cannot say whom to watch.
    for (int other = 0; other < count; ++other) peers[other].process = peers_[ranks[other]].process.duplicate();
    return std::make_unique<ProcessAreas>(place, std::move(own), std::move(peers), timeout_);
  } catch (const std::exception& failure) {
    refuse_offers(ranks, {answered, place}, offered);
    throw CommError("MU401",
                    formatted("rank {} could not share memory with the other ranks of group {}: {}. Is there memory "
                              "left, also in /dev/shm's limit of a container? The backend gloo does without.",
                              place, name, plain_words(failure.what())));
  }
}

/// So that no member waits for this rank: those below it see that their offers' other ends are closed.
void ProcessAreas::refuse_offers(const std::vector<int>& ranks, Range unanswered, int offered) noexcept {
  const auto deadline = Clock::now() + std::min(timeout_, std::chrono::milliseconds(5000));
  for (int64_t other = unanswered.begin; other < static_cast<int64_t>(ranks.size()); ++other) {
    try {
      if (other >= offered) peers_[ranks[other]].link.send("failed", {});
      else if (other < unanswered.end) next_message(ranks[other], deadline);
    } catch (const std::exception&) {
      // That rank is gone, and so waits for nobody.
    }
  }
}

/// What ranks of one host have in common.
std::string host_of(const ClusterEnvironment& cluster) {
  if (const auto named = Environment::of_process().find("MUSTER_HOST")) return "name " + *named;
  if (cluster.launcher != LauncherKind::none && cluster.launcher != LauncherKind::environment)
    return formatted("node {}", cluster.node_rank);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return boot.empty() ? formatted("rank {}", cluster.rank) : "boot " + boot;
}

class Handover {
 public:
  Handover(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
           std::chrono::milliseconds timeout)
      : store_(store), rank_(cluster.rank), size_(cluster.world_size), timeout_(timeout), host_(host_of(cluster)) {}

  SharedAttempt run() {
    std::string reason = attempt([this] {
      listener_.emplace(size_);
      own_ = Segment::make(AreaLayout(size_).bytes());
    });
    if (reason.empty()) reason = read_all("host", host_, &Handover::other_hosts);
    else set("host", "!" + reason), reason = read_all("host", {}, &Handover::other_hosts);
    if (!reason.empty()) return {nullptr, reason};
    set("path", listener_->path());
    reason = attempt([this] { connect_all(); });
    listener_.reset();
    if (!reason.empty()) peers_.clear();
    reason = read_all("shared", reason.empty() ? "yes" : "!" + reason, nullptr);
    if (!reason.empty()) return {nullptr, reason};
    return {std::make_unique<ProcessAreas>(rank_, std::move(own_), std::move(peers_), timeout_), ""};
  }

 private:
  template <class F>
  static std::string attempt(F f) {
    try {
      f();
      return "";
    } catch (const std::exception& failure) {
      return plain_words(failure.what());
    }
  }

  std::string key(const std::string& what, int rank) const { return formatted("shm/{}/{}", what, rank); }
  void set(const std::string& what, const std::string& value) {
    store_->set(key(what, rank_), std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& what, int rank) {
    const auto bytes = store_->get(key(what, rank));
    return {bytes.begin(), bytes.end()};
  }

  /// Says `own`, unless it is empty, and hears all ranks: the first one's trouble, or what `compare` finds.
  std::string read_all(const std::string& what, const std::string& own,
                       std::string (*compare)(const std::vector<std::string>&)) {
    if (!own.empty()) set(what, own);
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(get(what, rank));
    for (int rank = 0; rank < size_; ++rank)
      if (all[rank].starts_with('!')) return formatted("rank {}: {}", rank, all[rank].substr(1));
    return compare ? compare(all) : "";
  }

  static std::string other_hosts(const std::vector<std::string>& hosts) {
    for (std::size_t rank = 1; rank < hosts.size(); ++rank)
      if (hosts[rank] != hosts[0]) return formatted("ranks 0 and {} are not on one host", rank);
    return "";
  }

  void connect_all() {
    const auto deadline = Clock::now() + timeout_;
    const std::size_t bytes = AreaLayout(size_).bytes();
    peers_.resize(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < rank_; ++peer) {
      peers_[peer].link = Link::connect(get("path", peer));
      introduce(peers_[peer].link);
    }
    for (int missing = size_ - 1 - rank_; missing > 0;) {
      Link link = accept_next(deadline);
      if (!link.is_own_user()) continue;
      const auto [peer, descriptor] = hear(link, deadline);
      if (peer <= rank_ || peer >= size_ || peers_[peer].memory.data()) continue;
      peers_[peer].memory = Segment::map(descriptor, bytes);
      introduce(link);
      peers_[peer].link = std::move(link);
      --missing;
    }
    for (int peer = 0; peer < rank_; ++peer) {
      if (!peers_[peer].link.is_own_user()) throw std::runtime_error("a rank belongs to another user");
      const auto [who, descriptor] = hear(peers_[peer].link, deadline);
      if (who != peer) throw std::runtime_error("a rank answered at the place of another one");
      peers_[peer].memory = Segment::map(descriptor, bytes);
    }
  }

  /// Does not wait for a rank that has failed.
  Link accept_next(TimePoint deadline) {
    for (;;) {
      const auto now = Clock::now();
      if (auto link = listener_->accept(std::min(deadline, now + std::chrono::milliseconds(200)));
          link.descriptor() >= 0)
        return link;
      for (int peer = 0; peer < size_; ++peer)
        if (store_->check({key("shared", peer)}) && get("shared", peer).starts_with('!'))
          throw std::runtime_error(formatted("rank {} failed", peer));
      if (now >= deadline) throw std::runtime_error("a rank of this host did not connect in time");
    }
  }

  void introduce(const Link& link) const { link.send(std::to_string(rank_), {own_.descriptor().get()}); }

  static std::pair<int, Descriptor> hear(const Link& link, TimePoint deadline) {
    LinkMessage message;
    try {
      message = link.recv(deadline);
    } catch (const std::runtime_error&) {
      return {-1, Descriptor()};
    }
    if (message.descriptors.size() != 1 || message.text.empty() || message.text.size() > 6) return {-1, Descriptor()};
    return {std::atoi(message.text.c_str()), std::move(message.descriptors[0])};
  }

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const std::string host_;
  std::optional<LinkListener> listener_;
  Segment own_;
  std::vector<Neighbour> peers_;
};

}  // namespace

SharedAttempt share_memory(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
                           std::chrono::milliseconds timeout) {
  return Handover(cluster, store, timeout).run();
}

}  // namespace muster::comm
