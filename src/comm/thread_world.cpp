#include "comm/thread_world.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/group.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/shared_memory/shared_collectives.h"
#include "muster/base/format.h"

namespace muster::comm {

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadTransport() override { close(); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->size_; }
  void send_frame(int to, const Frame& frame, TimePoint deadline) override;
  void recv_frame(int from, Frame& frame, TimePoint deadline) override;
  Request send(int to, const void* data, std::size_t bytes, int channel) override;
  Request recv(int from, void* data, std::size_t bytes, int channel) override;
  void abort(const std::string& cause) noexcept override;
  void close() noexcept override;
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  friend class ThreadHub::Block;

  /// Every send and receive starts here, after a pause in which another thread may run first: the rank may die.
  void begin_step(base::Lock& lock) MUSTER_REQUIRES(hub_->waiting_->mutex());
  void wait(base::Lock& lock, int peer, const std::function<bool()>& ready, TimePoint deadline)
      MUSTER_REQUIRES(hub_->waiting_->mutex());
  std::deque<ThreadHub::Block*>& list(const ThreadHub::Block& block, bool other_end)
      MUSTER_REQUIRES(hub_->waiting_->mutex());
  Request post(std::unique_ptr<ThreadHub::Block> block, base::Lock& lock) MUSTER_REQUIRES(hub_->waiting_->mutex());

  const std::shared_ptr<ThreadHub> hub_;
  const int rank_;
  int64_t step_ MUSTER_GUARDED_BY(hub_->waiting_->mutex()) = 0;
  std::optional<std::string> ended_ MUSTER_GUARDED_BY(hub_->waiting_->mutex());
};

/// One end of a block. The end that arrives second copies the bytes.
class ThreadHub::Block final : public Transport::Transfer {
 public:
  Block(ThreadTransport& transport, int peer, void* data, std::size_t bytes, int channel, bool sends)
      : transport_(transport), peer_(peer), data_(data), bytes_(bytes), channel_(channel), sends_(sends) {}
  ~Block() override;
  void wait(TimePoint deadline) override;
  bool try_match(std::deque<Block*>& others) MUSTER_REQUIRES(transport_.hub_->waiting_->mutex());

 private:
  friend class ThreadTransport;
  ThreadTransport& transport_;
  int peer_;
  void* data_;
  std::size_t bytes_;
  int channel_;
  bool sends_;
  bool done_ MUSTER_GUARDED_BY(transport_.hub_->waiting_->mutex()) = false;
};

std::unique_ptr<Transport> ThreadHub::join(const std::shared_ptr<ThreadHub>& self, int rank) {
  return std::make_unique<ThreadTransport>(self, rank);
}

std::deque<ThreadHub::Block*>& ThreadTransport::list(const ThreadHub::Block& block, bool other_end) {
  auto& mailbox = block.sends_ ? hub_->mailbox(rank_, block.peer_) : hub_->mailbox(block.peer_, rank_);
  return block.sends_ == other_end ? mailbox.receives : mailbox.sends;
}

bool ThreadHub::Block::try_match(std::deque<Block*>& others) {
  auto fits = [this](const Block* other) { return other->bytes_ == bytes_ && other->channel_ == channel_; };
  auto found = std::find_if(others.begin(), others.end(), fits);
  if (found == others.end()) return false;
  Block* other = *found;
  others.erase(found);
  if (sends_) std::memcpy(other->data_, data_, bytes_);
  else std::memcpy(data_, other->data_, bytes_);
  other->transport_.hub_->waiting_->mutex().assume_locked();  // all ends of a hub have one
  done_ = other->done_ = true;
  return true;
}

ThreadHub::Block::~Block() {
  base::Lock lock(transport_.hub_->waiting_->mutex());
  if (!done_) std::erase(transport_.list(*this, false), this);
}

void ThreadHub::Block::wait(TimePoint deadline) {
  base::Lock lock(transport_.hub_->waiting_->mutex());
  transport_.wait(
      lock, peer_, [this]() MUSTER_REQUIRES(transport_.hub_->waiting_->mutex()) { return done_; }, deadline);
}

void ThreadTransport::begin_step(base::Lock& lock) {
  if (ended_) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
  ++step_;
  if (hub_->kill_point_.rank == rank_ && step_ >= hub_->kill_point_.step) {
    ended_ = formatted("{}: rank {} was killed at step {}", "MU063", rank_, step_);
    hub_->closed_[rank_] = true;
    hub_->waiting_->changed(lock);
    throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
  }
}

void ThreadTransport::wait(base::Lock& lock, int peer, const std::function<bool()>& ready, TimePoint deadline) {
  auto over = [&]() MUSTER_REQUIRES(hub_->waiting_->mutex()) {
    return ready() || hub_->closed_[peer] || ended_.has_value();
  };
  bool in_time = hub_->waiting_->wait(lock, over, deadline);
  if (ready()) return;
  if (ended_) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
  if (in_time) throw TransportFailure{TransportFailure::Kind::closed, peer, "its thread left the group"};
  throw TransportFailure{TransportFailure::Kind::timeout, peer, ""};
}

void ThreadTransport::send_frame(int to, const Frame& frame, TimePoint) {
  hub_->waiting_->pause();
  base::Lock lock(hub_->waiting_->mutex());
  begin_step(lock);
  hub_->mailbox(rank_, to).frames.push_back(frame);
  hub_->waiting_->changed(lock);
}

void ThreadTransport::recv_frame(int from, Frame& frame, TimePoint deadline) {
  hub_->waiting_->pause();
  base::Lock lock(hub_->waiting_->mutex());
  begin_step(lock);
  auto& frames = hub_->mailbox(from, rank_).frames;
  wait(
      lock, from, [&] { return !frames.empty(); }, deadline);
  frame = frames.front();
  frames.pop_front();
}

Transport::Request ThreadTransport::post(std::unique_ptr<ThreadHub::Block> block, base::Lock& lock) {
  block->transport_.hub_->waiting_->mutex().assume_locked();  // it is this transport's
  if (block->try_match(list(*block, true))) hub_->waiting_->changed(lock);
  else list(*block, false).push_back(block.get());
  return block;
}

Transport::Request ThreadTransport::send(int to, const void* data, std::size_t bytes, int channel) {
  hub_->waiting_->pause();
  base::Lock lock(hub_->waiting_->mutex());
  begin_step(lock);
  return post(std::make_unique<ThreadHub::Block>(*this, to, const_cast<void*>(data), bytes, channel, true), lock);
}

Transport::Request ThreadTransport::recv(int from, void* data, std::size_t bytes, int channel) {
  hub_->waiting_->pause();
  base::Lock lock(hub_->waiting_->mutex());
  begin_step(lock);
  return post(std::make_unique<ThreadHub::Block>(*this, from, data, bytes, channel, false), lock);
}

void ThreadTransport::abort(const std::string& cause) noexcept {
  base::Lock lock(hub_->waiting_->mutex());
  if (ended_) return;
  ended_ = cause;
  for (int to = 0; to < size(); ++to)
    if (to != rank_) hub_->mailbox(rank_, to).frames.push_back(abort_frame(rank_, cause));
  hub_->waiting_->changed(lock);
}

void ThreadTransport::close() noexcept {
  base::Lock lock(hub_->waiting_->mutex());
  if (!ended_) ended_ = "the group is closed";
  hub_->closed_[rank_] = true;
  hub_->waiting_->changed(lock);
}

std::unique_ptr<Transport> ThreadTransport::split(const std::vector<int>& ranks, const std::string& name) {
  int new_rank = rank_index(ranks, rank_);
  base::Lock lock(hub_->waiting_->mutex());
  auto& part = hub_->subgroups_[name];
  auto hub = part.lock();
  if (!hub) {
    hub = std::make_shared<ThreadHub>(static_cast<int>(ranks.size()), hub_->waiting_);
    part = hub;
  }
  return hub->join(hub, new_rank);
}

namespace {

constexpr std::align_val_t kPage{4096};

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

class ThreadAreas final : public SharedAreas {
 public:
  ThreadAreas(std::shared_ptr<ThreadAreasHub> hub, int rank) : SharedAreas(rank, hub->size_), hub_(std::move(hub)) {
    for (int peer = 0; peer < size(); ++peer) set_area(peer, hub_->areas_[peer]);
  }
  ~ThreadAreas() override { close(); }

  void notify_all() override {
    hub_->waiting_->pause();
    base::Lock lock(hub_->waiting_->mutex());
    begin_step(lock);
    hub_->waiting_->changed(lock);
  }

  void abort(const std::string& cause) noexcept override {
    base::Lock lock(hub_->waiting_->mutex());
    if (ended_) return;
    ended_ = cause;
    write_cause(cause);
    hub_->waiting_->changed(lock);
  }

  void close() noexcept override {
    base::Lock lock(hub_->waiting_->mutex());
    if (!ended_) ended_ = "the group is closed";
    hub_->closed_[rank()] = true;
    hub_->waiting_->changed(lock);
  }

  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) override {
    const auto new_rank = rank_index(ranks, rank());
    base::Lock lock(hub_->waiting_->mutex());
    auto& part = hub_->subgroups_[name];
    auto hub = part.lock();
    if (!hub) part = hub = std::make_shared<ThreadAreasHub>(static_cast<int>(ranks.size()), hub_->waiting_);
    return ThreadAreasHub::join(hub, new_rank);
  }

  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                TimePoint) override {
    hub_->waiting_->pause();
    base::Lock lock(hub_->waiting_->mutex());
    begin_step(lock);
    auto& known = hub_->buffers_[number];
    auto buffer = known.lock();
    if (!buffer) known = buffer = new_buffer(size(), bytes, access, number);
    return buffer;
  }

  std::size_t part_alignment() const noexcept override { return 1; }
  double latency_of(const Frame&) override { return looks_++ % 2 ? 0 : 2 * kNearNanoseconds; }

 protected:
  bool is_scheduled() const noexcept override { return true; }

  void wait_for(int peer, int, const std::function<bool()>& ready, TimePoint deadline) override {
    hub_->waiting_->pause();
    base::Lock lock(hub_->waiting_->mutex());
    begin_step(lock);
    const auto lost = [&]() MUSTER_REQUIRES(hub_->waiting_->mutex()) { return peer >= 0 && hub_->closed_[peer]; };
    const auto over = [&]() MUSTER_REQUIRES(hub_->waiting_->mutex()) {
      return ready() || ended_ || aborting_rank(peer) >= 0 || lost();
    };
    const bool in_time = hub_->waiting_->wait(lock, over, deadline);
    if (ready()) return;
    if (ended_) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
    if (const int who = aborting_rank(peer); who >= 0) throw cause_of(who);
    if (in_time) throw TransportFailure{TransportFailure::Kind::closed, peer, "its thread left the group"};
    throw TransportFailure{TransportFailure::Kind::timeout, peer, ""};
  }

 private:
  /// A scheduling point, after a pause in which another thread may run first: the rank may die.
  void begin_step(base::Lock& lock) MUSTER_REQUIRES(hub_->waiting_->mutex()) {
    if (ended_) throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
    if (hub_->kill_rank_ != rank() || ++step_ < hub_->kill_step_) return;
    ended_ = formatted("{}: rank {} was killed at step {}", "MU063", rank(), step_);
    hub_->closed_[rank()] = true;
    hub_->waiting_->changed(lock);
    throw TransportFailure{TransportFailure::Kind::aborted, -1, *ended_};
  }

  const std::shared_ptr<ThreadAreasHub> hub_;
  int64_t step_ MUSTER_GUARDED_BY(hub_->waiting_->mutex()) = 0;
  std::optional<std::string> ended_ MUSTER_GUARDED_BY(hub_->waiting_->mutex());
  uint64_t looks_ = 0;  // counter that makes ranks alternate between near and far, whatever cores the threads run on
};

ThreadAreasHub::ThreadAreasHub(int size, std::shared_ptr<WaitPolicy> waiting)
    : size_(size), waiting_(std::move(waiting)), closed_(static_cast<std::size_t>(size)) {
  const std::size_t bytes = AreaLayout(size).bytes();
  for (int rank = 0; rank < size; ++rank) {
    areas_.push_back(static_cast<std::byte*>(::operator new(bytes, kPage)));
    std::memset(areas_.back(), 0, bytes);
  }
}

ThreadAreasHub::~ThreadAreasHub() {
  for (auto* area : areas_) ::operator delete(area, kPage);
}

std::unique_ptr<SharedAreas> ThreadAreasHub::join(const std::shared_ptr<ThreadAreasHub>& hub, int rank) {
  return std::make_unique<ThreadAreas>(hub, rank);
}

namespace {

using Join = std::function<std::unique_ptr<Collectives>(int rank)>;

struct Rank {
  int rank;
  int size;
};

std::exception_ptr run_rank(const Join& join, const GroupIdentity& identity, Rank place, const CustomBackend& backend,
                            const std::function<void(Communicator)>& body) {
  try {
    auto host_collectives = identity.starts_inline ? make_solo() : join(place.rank);
    std::unique_ptr<DeviceCollectives> device_collectives;
    if (backend.entry.make && place.size > 1)
      device_collectives =
          std::make_unique<DeviceCollectives>(backend.make(identity.name, place.rank, place.size), backend);
    body(Communicator(std::make_shared<Group>(identity, std::move(host_collectives), std::move(device_collectives))));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

CustomBackend device_backend_of(const ThreadWorldOptions& options) {
  if (!options.device_backend) return {};
  return {*options.device_backend,
          {.timeout = options.timeout},
          [whole = c10::make_intrusive<c10d::HashStore>()](const std::string& name) {
            return c10::make_intrusive<c10d::PrefixStore>(name, whole);
          }};
}

template <class Hub>
std::shared_ptr<Hub> new_hub(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  auto hub = std::make_shared<Hub>(size, identity.waiting);
  if (options.kill_rank >= 0) hub->kill(options.kill_rank, options.kill_step);
  return hub;
}

/// Makes one hub for messages between all ranks, and one hub per host for its shared memory.
Join hierarchical_join_of(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  std::vector<int> host_of_rank;
  for (std::size_t host = 0; host < options.hosts.size(); ++host)
    host_of_rank.insert(host_of_rank.end(), static_cast<std::size_t>(options.hosts[host]), static_cast<int>(host));
  const Hosts hosts(host_of_rank);
  std::vector<std::shared_ptr<ThreadAreasHub>> memory;
  for (int host = 0; host < hosts.count(); ++host) {
    memory.push_back(std::make_shared<ThreadAreasHub>(hosts.size(host), identity.waiting));
    if (options.kill_rank >= 0 && hosts.of(options.kill_rank) == host)
      memory.back()->kill(options.kill_rank - hosts.first(host), options.kill_step);
  }
  return [=, hub = new_hub<ThreadHub>(size, identity, options)](int rank) {
    const int host = hosts.of(rank);
    return std::make_unique<Hierarchical>(hub->join(hub, rank),
                                          ThreadAreasHub::join(memory[host], rank - hosts.first(host)), hosts,
                                          options.two_level_sums, options.timeout);
  };
}

Join join_of(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  if (!options.hosts.empty()) return hierarchical_join_of(size, identity, options);
  if (options.shared_memory)
    return [hub = new_hub<ThreadAreasHub>(size, identity, options)](int rank) {
      return std::make_unique<SharedCollectives>(ThreadAreasHub::join(hub, rank));
    };
  return [hub = new_hub<ThreadHub>(size, identity, options)](int rank) { return make_pairwise(hub->join(hub, rank)); };
}

}  // namespace

std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body) {
  auto schedule = options.seed ? std::make_shared<SeededScheduler>(options.seed) : nullptr;
  GroupIdentity identity;
  identity.backend = "threads";
  identity.timeout = options.timeout;
  identity.starts_inline = size == 1;
  if (schedule) identity.waiting = schedule;
  const Join join = join_of(size, identity, options);
  const CustomBackend backend = device_backend_of(options);

  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.push_back(identity.waiting->start_thread([&, rank] {
      errors[rank] = run_rank(join, identity, {rank, size}, backend, body);
    }));
  if (schedule) schedule->begin();
  for (auto& thread : threads) identity.waiting->join(thread);
  return errors;
}

}  // namespace muster::comm
