#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <deque>
#include <system_error>

#include <ATen/Parallel.h>

#include "base/deadline.h"
#include "base/mutex.h"
#include "comm/collectives.h"
#include "comm/error_text.h"
#include "comm/hierarchical/hosts.h"
#include "comm/shared_memory/areas.h"
#include "comm/shared_memory/link.h"
#include "comm/shared_memory/segment.h"
#include "muster/base/environment.h"
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

constexpr const char* kReady = "ready";

void expect_descriptors(const LinkMessage& message, std::size_t count) {
  if (message.descriptors.size() != count) throw std::runtime_error("this process can open no more files");
}

/// Returns an empty segment if the system refuses.
template <class Make>
Segment attempt(Make make) {
  try {
    return make();
  } catch (const std::runtime_error&) {
    return {};
  }
}

/// What a rank contributes to a group.
struct OwnArea {
  OwnArea() = default;
  /// Throws: std::system_error if the system refuses memory or a descriptor.
  explicit OwnArea(int size)
      : memory(Segment::make(AreaLayout(size).bytes(), AreaLayout(size).bytes_at_first())),
        event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event) throw std::system_error(errno, std::generic_category(), "eventfd");
    reinterpret_cast<Control*>(memory.data())->cores = own_cores();
  }

  Segment memory;
  Descriptor event;  ///< with it another thread of this process wakes the rank
};

/// A peer, from the point of view of this rank.
struct Neighbour {
  Link link;
  std::shared_ptr<const Descriptor> process;  ///< becomes readable when the process has ended; may be null
  Segment memory;
  std::deque<LinkMessage> messages{};
  uint64_t woken = 0;  ///< number of the peer's last sleep that this rank ended
  bool gone = false;
};

/// The areas of ranks that are processes of one host. A waiting rank spins if no other thread needs its core, and then
/// sleeps until a peer wakes it, ends, or ends the group.
class ProcessAreas final : public SharedAreas {
 public:
  /// `peers` has one entry per rank; this rank's own is empty. `timeout` limits the forming of subgroups.
  ProcessAreas(int rank, OwnArea own, std::vector<Neighbour> peers, std::chrono::milliseconds timeout)
      : SharedAreas(rank, static_cast<int>(peers.size())), timeout_(timeout), own_(std::move(own)),
        peers_(std::move(peers)) {
    set_area(rank, own_.memory.data());
    cpu_set_t cores = control(rank).cores;
    own_cores_ = CPU_COUNT(&cores);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank) continue;
      set_area(peer, peers_[peer].memory.data());
      if (!peers_[peer].process)
        peers_[peer].process = std::make_shared<const Descriptor>(peers_[peer].link.watch_process());
      CPU_OR(&cores, &cores, &control(peer).cores);
    }
    group_cores_ = std::min(CPU_COUNT(&cores), granted_cores());
  }
  ~ProcessAreas() override { close(); }

  void notify_all() override {
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
  void abort(const std::string& cause) noexcept override {
    base::Lock lock(mutex_);
    if (ended_.load(std::memory_order_relaxed)) return;
    cause_ = cause;
    write_cause(cause);
    ended_.store(true, std::memory_order_release);
    wake_everybody();
  }
  void close() noexcept override {
    base::Lock lock(mutex_);
    if (!ended_.load(std::memory_order_relaxed)) cause_ = "the group is closed";
    ended_.store(true, std::memory_order_release);
    // The memory stays until this object is destroyed, because the operation that failed may still be using it.
    for (auto& peer : peers_) peer.link = Link(), peer.process.reset(), peer.messages.clear();
    closed_ = true;
  }
  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) override {
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
  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                TimePoint deadline) override {
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
  std::size_t part_alignment() const noexcept override { return Segment::page_bytes(); }

 protected:
  void wait_for(int peer, int waker, const std::function<bool()>& ready, TimePoint deadline) override {
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
  void allocate(std::size_t begin, std::size_t bytes) override {
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

 private:
  /// A group of some of the ranks while it is being formed.
  struct Forming {
    const std::vector<int>& ranks;
    const std::string& name;
    TimePoint deadline;
    int new_rank;     ///< this rank's rank in the new group
    int offered = 0;  ///< members before this index have this rank's offer, or need none
    int heard = 0;    ///< from members before this index, an offer or a refusal was read
  };

  /// Spins only if that takes no core from a computing thread. In the group's own thread, one more core is needed.
  bool may_spin() const {
    const int threads = at::get_num_threads() + (std::this_thread::get_id() == home_ ? 0 : 1);
    return own_cores_ >= threads && group_cores_ >= size() * threads;
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
  void park(int waker, const std::function<bool()>& ready, TimePoint deadline) {
    Control& own = control(rank());
    own.parked.store(Sleep::pack(++sleeps_, waker), std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ready() && aborting_rank(-1) < 0) sleep(deadline);
    own.parked.store(0, std::memory_order_relaxed);
  }
  void sleep(TimePoint deadline) {
    std::vector<pollfd> polled{{own_.event.get(), POLLIN, 0}};
    std::vector<int> whose{-1};
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank() || peers_[peer].gone) continue;
      for (const int descriptor : {peers_[peer].link.descriptor(), peers_[peer].process->get()})
        if (descriptor >= 0) polled.push_back({descriptor, POLLIN, 0}), whose.push_back(peer);
    }
    if (::poll(polled.data(), polled.size(), milliseconds_until(deadline)) <= 0) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      Neighbour& peer = peers_[whose[i]];
      if (polled[i].fd == peer.process->get()) peer.gone = true;
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
  void wake_everybody() noexcept MUSTER_REQUIRES(mutex_) {
    if (closed_) return;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) peers_[peer].link.wake();
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(own_.event.get(), &one, sizeof(one));
  }
  [[noreturn]] void throw_own_end() {
    base::Lock lock(mutex_);
    throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
  }

  // Forms further groups of ranks that share memory, over the links that they already have.
  std::unique_ptr<SharedAreas> form(Forming& forming) {
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
  Neighbour offer(const Forming& forming, int member, const Segment& own) {
    auto [link, theirs] = Link::make_pair();
    peers_[forming.ranks[member]].link.send(forming.name, {theirs.get(), own.descriptor().get()}, forming.deadline);
    Neighbour neighbour;
    neighbour.link = std::move(link);
    return neighbour;
  }
  Neighbour take_offer(Forming& forming, int member, const Segment& own) {
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
  static void expect_reply(const Forming& forming, Neighbour& member) {
    const LinkMessage reply = member.link.recv(forming.deadline);
    expect_descriptors(reply, 1);
    member.memory = Segment::map(reply.descriptors[0], AreaLayout(static_cast<int>(forming.ranks.size())).bytes());
  }
  /// No member gets the group unless all members can have it.
  static void confirm(const Forming& forming, const std::vector<Neighbour>& members) {
    for (const auto& member : members)
      if (member.link.descriptor() >= 0) member.link.send(kReady, {}, forming.deadline);
    for (const auto& member : members)
      if (member.link.descriptor() >= 0 && member.link.recv(forming.deadline).text != kReady)
        throw std::runtime_error("the ranks form other groups");
  }
  /// Refuses the group, so that no member waits for this rank.
  void refuse(Forming& forming) noexcept {
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

  // Gives ranks that share memory more of it, for tensors, over the links that they already have.
  void offer_buffer(int peer, const std::string& name, const Segment& own, TimePoint deadline) {
    // Unread wake-ups would leave a peer no room for its offer.
    drain(peers_[peer]);
    try {
      if (own.data()) peers_[peer].link.send(name, {own.descriptor().get()}, deadline);
      else peers_[peer].link.send(refusal_of(name), {}, deadline);
    } catch (const std::runtime_error& failure) {
      throw lost(peer, deadline, failure);
    }
  }
  /// Receives the peer's descriptor; none if the peer has none.
  Descriptor take_buffer(int peer, const std::string& name, TimePoint deadline) {
    LinkMessage message;
    try {
      message = next_message(peer, name, deadline);
    } catch (const std::runtime_error& failure) {
      throw lost(peer, deadline, failure);
    }
    if (message.text != name || message.descriptors.size() != 1) return {};
    return std::move(message.descriptors[0]);
  }
  static TransportFailure lost(int peer, TimePoint deadline, const std::runtime_error& failure) {
    const bool late = TimePoint::clock::now() >= deadline;
    return {late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer, failure.what()};
  }

  static std::string refusal_of(const std::string& name) { return "not " + name; }
  /// What the peer sends for that name, or its refusal. Messages for other names, whose groups were given up, are
  /// skipped.
  LinkMessage next_message(int peer, const std::string& name, TimePoint deadline) {
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

  const std::chrono::milliseconds timeout_;
  OwnArea own_;
  std::vector<Neighbour> peers_;
  int group_cores_ = 0;  // number of cores of all ranks together
  int own_cores_ = 0;
  const std::thread::id home_ = std::this_thread::get_id();
  uint64_t sleeps_ = 0;
  std::atomic<bool> ended_ = false;

  base::Mutex mutex_;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  std::string cause_ MUSTER_GUARDED_BY(mutex_);
};

/// A text that ranks of one host have in common.
std::string host_of(const ClusterEnvironment& cluster) {
  if (const auto named = Environment::of_process().find("MUSTER_HOST")) return "name " + *named;
  if (cluster.launcher != LauncherKind::none && cluster.launcher != LauncherKind::environment)
    return formatted("node {}", cluster.node_rank);
  const std::string boot = boot_id();
  return boot.empty() ? formatted("rank {}", cluster.rank) : "boot " + boot;
}

/// Equal numbers for equal host names.
std::vector<int> numbered(const std::vector<std::string>& hosts) {
  std::vector<int> numbers;
  for (const auto& host : hosts)
    numbers.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin()));
  return numbers;
}

/// Why ranks on these hosts cannot share memory; empty if they can.
std::string obstacle_of(const Hosts& hosts, bool several) {
  if (hosts.count() == 1) return "";
  return several ? hosts.obstacle() : formatted("ranks 0 and {} are not on one host", hosts.first(1));
}

/// `rank_` and `size_` are those of the job. A rank of this host is identified by its index in local_ranks_.
class Handover {
 public:
  Handover(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
           std::chrono::milliseconds timeout)
      : store_(store), rank_(cluster.rank), size_(cluster.world_size), timeout_(timeout), host_(host_of(cluster)) {}

  SharedAttempt run(bool several_hosts) {
    std::vector<std::string> names;
    std::string reason = attempt([this] {
      listener_.emplace(size_);
      own_ = OwnArea(size_);
    });
    reason = agreed("host", reason, host_, &names);
    if (!reason.empty()) return {nullptr, reason};
    const auto hosts = numbered(names);
    reason = obstacle_of(Hosts(hosts), several_hosts);
    if (!reason.empty()) return {nullptr, reason};
    for (int rank = 0; rank < size_; ++rank)
      if (hosts[rank] == hosts[rank_]) local_ranks_.push_back(rank);
    local_rank_ = rank_index(local_ranks_, rank_);
    set("path", listener_->path());
    reason = attempt([this] {
      if (static_cast<int>(local_ranks_.size()) < size_) own_ = OwnArea(static_cast<int>(local_ranks_.size()));
      connect_all();
    });
    // Closed before any rank learns of a failure, so that no peer keeps waiting at these ends.
    listener_.reset();
    if (!reason.empty()) peers_.clear();
    reason = agreed("shared", reason, "yes", nullptr);
    if (!reason.empty()) return {nullptr, reason};
    return {std::make_unique<ProcessAreas>(local_rank_, std::move(own_), std::move(peers_), timeout_), "", hosts};
  }

 private:
  template <class F>
  static std::string attempt(F f) {
    try {
      f();
      return "";
    } catch (const std::exception& failure) {
      const std::string words = short_error_text(failure.what());
      return words.empty() ? "an unknown error" : words;
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

  /// Stores this rank's failure, or `own` if it has none, and reads those of all ranks. Returns the failure of the
  /// first rank that has one; otherwise `values` gets what all ranks stored.
  std::string agreed(const std::string& what, const std::string& trouble, const std::string& own,
                     std::vector<std::string>* values) {
    set(what, trouble.empty() ? own : "!" + trouble);
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(get(what, rank));
    for (int rank = 0; rank < size_; ++rank)
      if (all[rank].starts_with('!')) return formatted("rank {}: {}", rank, all[rank].substr(1));
    if (values) *values = std::move(all);
    return "";
  }

  /// Connects to the ranks before this one and accepts connections of the ranks after it.
  void connect_all() {
    const auto deadline = Clock::now() + timeout_;
    const auto count = static_cast<int>(local_ranks_.size());
    peers_.resize(local_ranks_.size());
    for (int peer = 0; peer < local_rank_; ++peer) {
      peers_[peer].link = Link::connect(get("path", local_ranks_[peer]));
      if (!peers_[peer].link.is_own_user())
        throw std::runtime_error(formatted("rank {} is another user's", local_ranks_[peer]));
      introduce(peers_[peer].link, deadline);
    }
    for (int missing = count - 1 - local_rank_; missing > 0;) {
      Link link = accept_next(deadline);
      if (!link.is_own_user()) continue;
      auto [peer, memory] = receive_memory(link, deadline);
      if (peer <= local_rank_ || peer >= count || peers_[peer].memory.data()) continue;
      introduce(link, deadline);
      peers_[peer].link = std::move(link);
      peers_[peer].memory = std::move(memory);
      --missing;
    }
    for (int peer = 0; peer < local_rank_; ++peer) {
      auto [who, memory] = receive_memory(peers_[peer].link, deadline);
      if (who != peer) throw std::runtime_error(formatted("rank {} did not answer", local_ranks_[peer]));
      peers_[peer].memory = std::move(memory);
    }
  }

  /// Accepts the next connection. Stops waiting if a rank has failed.
  Link accept_next(TimePoint deadline) {
    for (;;) {
      const auto now = Clock::now();
      if (auto link = listener_->accept(std::min(deadline, now + std::chrono::milliseconds(200)));
          link.descriptor() >= 0)
        return link;
      for (const int rank : local_ranks_)
        if (store_->check({key("shared", rank)}) && get("shared", rank).starts_with('!'))
          throw std::runtime_error(formatted("rank {} failed", rank));
      if (now >= deadline) throw std::runtime_error("a rank of this host did not connect in time");
    }
  }

  void introduce(const Link& link, TimePoint deadline) const {
    link.send(std::to_string(local_rank_), {own_.memory.descriptor().get()}, deadline);
  }

  /// The index of the rank at the other end, and its memory; -1 if it is not a rank of this job.
  std::pair<int, Segment> receive_memory(const Link& link, TimePoint deadline) const {
    LinkMessage message;
    try {
      message = link.recv(deadline);
    } catch (const std::runtime_error&) {
      return {-1, Segment()};
    }
    int who = -1;
    const char* end = message.text.data() + message.text.size();
    if (std::from_chars(message.text.data(), end, who).ptr != end) return {-1, Segment()};
    if (message.descriptors.empty()) throw std::runtime_error("this process can open no more files");
    return {who, Segment::map(message.descriptors[0], AreaLayout(static_cast<int>(local_ranks_.size())).bytes())};
  }

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const std::string host_;
  std::vector<int> local_ranks_;  ///< the ranks of the job on this host
  int local_rank_ = 0;            ///< index of this rank in local_ranks_
  std::optional<LinkListener> listener_;
  OwnArea own_;
  std::vector<Neighbour> peers_;
};

}  // namespace

SharedAttempt share_memory(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
                           std::chrono::milliseconds timeout, bool several_hosts) {
  return Handover(cluster, store, timeout).run(several_hosts);
}

}  // namespace muster::comm
