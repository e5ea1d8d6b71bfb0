#include "comm/thread_world.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/group.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/shared_memory/shared_collectives.h"
#include "muster/base/format.h"

namespace muster::comm {

/// A rank of a hub: where its steps begin, what ends its waits, and how it leaves.
struct ThreadRank {
  /// Every step begins here, after a pause in which another thread may run first: the rank may die.
  void begin_step(base::Lock& lock) MUSTER_REQUIRES(hub->waiting_->mutex()) {
    check_ended();
    if (hub->kill_point_.rank != own || ++step < hub->kill_point_.step) return;
    ended = formatted("{}: rank {} was killed at step {}", "MU063", own, step);
    hub->closed_[own] = true;
    hub->waiting_->changed(lock);
    check_ended();
  }
  void check_ended() const MUSTER_REQUIRES(hub->waiting_->mutex()) {
    if (ended) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended};
  }
  void wait_until(base::Lock& lock, int peer, const std::function<bool()>& ready, TimePoint deadline)
      MUSTER_REQUIRES(hub->waiting_->mutex()) {
    const auto over = [&]() MUSTER_REQUIRES(hub->waiting_->mutex()) {
      return ready() || ended || (peer >= 0 && hub->closed_[peer]);
    };
    const bool in_time = hub->waiting_->wait(lock, over, deadline);
    if (ready()) return;
    check_ended();
    if (in_time) throw TransportFailure{TransportFailure::Kind::closed, peer, "its thread left the group"};
    throw TransportFailure{TransportFailure::Kind::timeout, peer, ""};
  }
  void leave() noexcept {
    base::Lock lock(hub->waiting_->mutex());
    if (!ended) ended = "the group is closed";
    hub->closed_[own] = true;
    hub->waiting_->changed(lock);
  }
  /// The hub of a group of some of the ranks.
  std::shared_ptr<ThreadHub> subgroup(const std::vector<int>& ranks, const std::string& name) const {
    base::Lock lock(hub->waiting_->mutex());
    auto& part = hub->subgroups_[name];
    auto made = part.lock();
    if (!made) part = made = std::make_shared<ThreadHub>(static_cast<int>(ranks.size()), hub->waiting_);
    return made;
  }

  const std::shared_ptr<ThreadHub> hub;
  const int own;  ///< its number
  int64_t step MUSTER_GUARDED_BY(hub->waiting_->mutex()) = 0;
  std::optional<std::string> ended MUSTER_GUARDED_BY(hub->waiting_->mutex()){};  ///< the cause
};

/// One end of a block. The end that arrives second copies the bytes.
class ThreadHub::Block final : public Transport::Transfer {
 public:
  /// `queue`: the list of ends for which the others have not arrived.
  Block(ThreadRank& rank, int peer, std::deque<Block*>& queue, void* data, std::size_t bytes, int channel, bool sends)
      : rank_(rank), peer_(peer), queue_(queue), data_(data), bytes_(bytes), channel_(channel), sends_(sends) {}
  ~Block() override {
    base::Lock lock(rank_.hub->waiting_->mutex());
    if (!done_) std::erase(queue_, this);
  }
  void wait(TimePoint deadline) override {
    base::Lock lock(rank_.hub->waiting_->mutex());
    rank_.wait_until(
        lock, peer_, [this]() MUSTER_REQUIRES(rank_.hub->waiting_->mutex()) { return done_; }, deadline);
  }
  bool try_match(std::deque<Block*>& others) MUSTER_REQUIRES(rank_.hub->waiting_->mutex()) {
    const auto fits = [this](const Block* other) { return other->bytes_ == bytes_ && other->channel_ == channel_; };
    const auto found = std::find_if(others.begin(), others.end(), fits);
    if (found == others.end()) return false;
    Block* other = *found;
    others.erase(found);
    if (sends_) std::memcpy(other->data_, data_, bytes_);
    else std::memcpy(data_, other->data_, bytes_);
    other->rank_.hub->waiting_->mutex().assume_locked();  // all ends of a hub have one
    done_ = other->done_ = true;
    return true;
  }

 private:
  friend class ThreadTransport;
  ThreadRank& rank_;
  int peer_;
  std::deque<Block*>& queue_;
  void* data_;
  std::size_t bytes_;
  int channel_;
  bool sends_;
  bool done_ MUSTER_GUARDED_BY(rank_.hub->waiting_->mutex()) = false;
};

class ThreadTransport final : public Transport, private ThreadRank {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> shared, int rank) : ThreadRank{std::move(shared), rank} {}
  ~ThreadTransport() override { leave(); }

  int rank() const noexcept override { return own; }
  int size() const noexcept override { return hub->size_; }

  void send_frame(int to, const Frame& frame, TimePoint) override {
    hub->waiting_->pause();
    base::Lock lock(hub->waiting_->mutex());
    begin_step(lock);
    hub->mailbox(own, to).frames.push_back(frame);
    hub->waiting_->changed(lock);
  }
  void recv_frame(int from, Frame& frame, TimePoint deadline) override {
    hub->waiting_->pause();
    base::Lock lock(hub->waiting_->mutex());
    begin_step(lock);
    auto& frames = hub->mailbox(from, own).frames;
    wait_until(
        lock, from, [&] { return !frames.empty(); }, deadline);
    frame = frames.front();
    frames.pop_front();
  }
  Request send(int to, const void* data, std::size_t bytes, int channel) override {
    return post(to, const_cast<void*>(data), bytes, channel, true);
  }
  Request recv(int from, void* data, std::size_t bytes, int channel) override {
    return post(from, data, bytes, channel, false);
  }

  void abort(const std::string& cause) noexcept override {
    base::Lock lock(hub->waiting_->mutex());
    if (ended) return;
    ended = cause;
    for (int to = 0; to < size(); ++to)
      if (to != own) hub->mailbox(own, to).frames.push_back(abort_frame(own, cause));
    hub->waiting_->changed(lock);
  }
  void close() noexcept override { leave(); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    const auto part = subgroup(ranks, name);
    return part->join(part, rank_index(ranks, own));
  }

 private:
  Request post(int peer, void* data, std::size_t bytes, int channel, bool sends) {
    hub->waiting_->pause();
    base::Lock lock(hub->waiting_->mutex());
    begin_step(lock);
    auto& mailbox = sends ? hub->mailbox(own, peer) : hub->mailbox(peer, own);
    auto& queue = sends ? mailbox.sends : mailbox.receives;
    auto& others = sends ? mailbox.receives : mailbox.sends;
    ThreadRank& self = *this;
    auto block = std::make_unique<ThreadHub::Block>(self, peer, queue, data, bytes, channel, sends);
    block->rank_.hub->waiting_->mutex().assume_locked();  // it is this transport's
    if (block->try_match(others)) hub->waiting_->changed(lock);
    else queue.push_back(block.get());
    return block;
  }
};

std::unique_ptr<Transport> ThreadHub::join(const std::shared_ptr<ThreadHub>& self, int rank) {
  return std::make_unique<ThreadTransport>(self, rank);
}

namespace {

/// Makes one buffer with memory for all ranks.
std::shared_ptr<SharedBuffer> new_buffer(int ranks, std::size_t bytes, PeerAccess access, uint64_t number) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes * static_cast<std::size_t>(ranks));
  auto buffer = std::make_shared<SharedBuffer>(SharedBuffer{number, bytes, access});
  for (int rank = 0; rank < ranks; ++rank)
    buffer->parts.push_back(memory->data() + bytes * static_cast<std::size_t>(rank));
  if (access == PeerAccess::read_contiguous) buffer->row = memory->data();
  buffer->keeps = std::move(memory);
  return buffer;
}

}  // namespace

class ThreadAreas final : public SharedAreas, private ThreadRank {
 public:
  ThreadAreas(std::shared_ptr<ThreadHub> shared, int rank)
      : SharedAreas(rank, shared->size_), ThreadRank{std::move(shared), rank} {
    base::Lock lock(hub->waiting_->mutex());
    const std::size_t pages = (layout().bytes() + sizeof(ThreadHub::Page) - 1) / sizeof(ThreadHub::Page);
    if (hub->areas_.empty()) hub->areas_.assign(static_cast<std::size_t>(size()), std::vector<ThreadHub::Page>(pages));
    for (int peer = 0; peer < size(); ++peer) set_area(peer, hub->areas_[peer].data()->bytes);
  }
  ~ThreadAreas() override { leave(); }

  void notify_all() override {
    hub->waiting_->pause();
    base::Lock lock(hub->waiting_->mutex());
    begin_step(lock);
    hub->waiting_->changed(lock);
  }

  void abort(const std::string& cause) noexcept override {
    base::Lock lock(hub->waiting_->mutex());
    if (ended) return;
    ended = cause;
    write_cause(cause);
    hub->waiting_->changed(lock);
  }
  void close() noexcept override { leave(); }
  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) override {
    return ThreadHub::join_areas(subgroup(ranks, name), rank_index(ranks, own));
  }

  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                TimePoint) override {
    hub->waiting_->pause();
    base::Lock lock(hub->waiting_->mutex());
    begin_step(lock);
    auto& known = hub->buffers_[number];
    auto buffer = known.lock();
    if (!buffer) known = buffer = new_buffer(size(), bytes, access, number);
    return buffer;
  }

  std::size_t part_alignment() const noexcept override { return 1; }
  double latency_of(const Frame&) override { return looks_++ % 2 ? 0 : 2 * kNearNanoseconds; }

 protected:
  bool is_scheduled() const noexcept override { return true; }

  void wait_for(int peer, int, const std::function<bool()>& ready, TimePoint deadline) override {
    hub->waiting_->pause();
    base::Lock lock(hub->waiting_->mutex());
    begin_step(lock);
    wait_until(
        lock, peer, [&] { return ready() || aborting_rank(peer) >= 0; }, deadline);
    if (ready()) return;
    check_ended();
    throw cause_of(aborting_rank(peer));
  }

 private:
  uint64_t looks_ = 0;  // counter that makes ranks alternate between near and far, whatever cores the threads run on
};

std::unique_ptr<SharedAreas> ThreadHub::join_areas(const std::shared_ptr<ThreadHub>& self, int rank) {
  return std::make_unique<ThreadAreas>(self, rank);
}

namespace {

using Join = std::function<std::unique_ptr<Collectives>(int rank)>;

std::exception_ptr run_rank(const Join& join, const GroupIdentity& identity, int rank, const CustomBackend& backend,
                            const std::function<void(Communicator)>& body) {
  try {
    auto host_collectives = identity.starts_inline ? make_local() : join(rank);
    std::unique_ptr<DeviceCollectives> device_collectives;
    if (const int size = host_collectives->size(); backend.entry.make && size > 1)
      device_collectives = std::make_unique<DeviceCollectives>(backend.make(identity.name, rank, size), backend);
    body(Communicator(std::make_shared<Group>(identity, std::move(host_collectives), std::move(device_collectives))));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::shared_ptr<ThreadHub> new_hub(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  auto hub = std::make_shared<ThreadHub>(size, identity.waiting);
  hub->kill(options.kill_rank, options.kill_step);
  return hub;
}

/// Makes one hub for messages between all ranks, and one hub per host for its shared memory.
Join hierarchical_join_of(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  std::vector<int> host_of_rank;
  for (std::size_t host = 0; host < options.hosts.size(); ++host)
    host_of_rank.insert(host_of_rank.end(), static_cast<std::size_t>(options.hosts[host]), static_cast<int>(host));
  const Hosts hosts(host_of_rank);
  std::vector<std::shared_ptr<ThreadHub>> memory;
  for (int host = 0; host < hosts.count(); ++host) {
    memory.push_back(std::make_shared<ThreadHub>(hosts.size(host), identity.waiting));
    if (options.kill_rank >= 0 && hosts.of(options.kill_rank) == host)
      memory.back()->kill(options.kill_rank - hosts.first(host), options.kill_step);
  }
  return [=, hub = new_hub(size, identity, options)](int rank) {
    const int host = hosts.of(rank);
    return std::make_unique<Hierarchical>(hub->join(hub, rank),
                                          ThreadHub::join_areas(memory[host], rank - hosts.first(host)), hosts,
                                          options.two_level_sums, options.timeout);
  };
}

Join join_of(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  if (!options.hosts.empty()) return hierarchical_join_of(size, identity, options);
  const auto hub = new_hub(size, identity, options);
  if (options.shared_memory)
    return [hub](int rank) { return std::make_unique<SharedCollectives>(ThreadHub::join_areas(hub, rank)); };
  return [hub](int rank) { return make_pairwise(hub->join(hub, rank)); };
}

}  // namespace

std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body) {
  auto schedule = options.seed ? std::make_shared<SeededScheduler>(options.seed) : nullptr;
  GroupIdentity identity{.backend = "threads", .starts_inline = size == 1, .timeout = options.timeout};
  if (schedule) identity.waiting = schedule;
  const Join join = join_of(size, identity, options);
  CustomBackend backend;
  if (options.device_backend)
    backend = {*options.device_backend, {.timeout = options.timeout}, c10::make_intrusive<c10d::HashStore>()};

  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.push_back(
        identity.waiting->start_thread([&, rank] { errors[rank] = run_rank(join, identity, rank, backend, body); }));
  if (schedule) schedule->begin();
  for (auto& thread : threads) identity.waiting->join(thread);
  return errors;
}

}  // namespace muster::comm
