#include "comm/mpi/mpi_transport.h"

#include <sched.h>

#include <cstring>
#include <deque>
#include <thread>

#include "base/mutex.h"
#include "comm/handshake.h"
#include "comm/header.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm::mpi {

/// One message to or from a rank, in memory of its own: MPI may still use that memory after a wait has failed, so it is
/// never memory of the program. Thread safety: one thread at a time.
/// Why: docs/decisions/0148-mpi-never-sees-the-programs-memory.md.
class Message {
 public:
  explicit Message(std::shared_ptr<DuplicatedComm> comm) : comm_(std::move(comm)) {}
  ~Message() {
    if (!request_) return;
    if (!receives_ || !comm_->calls().cancel(*request_)) comm_->keep(memory_);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool under_way() const noexcept { return request_.has_value(); }
  /// Memory of at least that many bytes. Requires: the message is not in flight.
  std::byte* memory(std::size_t bytes) {
    if (capacity_ < bytes) {
      memory_ = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
      capacity_ = bytes;
    }
    return memory_.get();
  }
  const std::byte* memory() const noexcept { return memory_.get(); }
  /// Number of bytes received or to be sent.
  std::size_t bytes() const noexcept { return bytes_; }

  /// Starts the message with that many bytes of its memory. Requires: it is not in flight. Returns an error code.
  int send(std::size_t bytes, int to, int tag) {
    Handle request = 0;
    const int code = comm_->calls().send(memory_.get(), bytes, to, tag, comm_->communicator(), request);
    receives_ = false;
    bytes_ = bytes;
    if (code == 0) request_ = request;
    return code;
  }
  int recv(std::size_t bytes, int from, int tag) {
    Handle request = 0;
    const int code = comm_->calls().recv(memory(bytes), bytes, from, tag, comm_->communicator(), request);
    receives_ = true;
    bytes_ = 0;
    if (code == 0) request_ = request;
    return code;
  }
  /// Tests the message. It is no longer in flight if MPI has completed it, or if it failed. Returns an error code.
  int test() {
    if (!request_) return 0;
    bool done = false;
    std::size_t received = 0;
    const int code = comm_->calls().test(*request_, done, received);
    if (!done && code == 0) return 0;
    if (code == kFinalized || code == kWrongThread) return code;
    request_.reset();
    if (receives_) bytes_ = received;
    return code;
  }

 private:
  std::shared_ptr<DuplicatedComm> comm_;
  std::shared_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
  std::size_t bytes_ = 0;
  bool receives_ = false;
  std::optional<Handle> request_;
};

/// How a thread polls: first without a pause, then yielding its core, and after a while with short sleeps.
class Backoff {
 public:
  /// Waits a little. Returns whether nothing has happened for a while.
  bool wait() {
    using std::chrono::milliseconds, std::chrono::microseconds;
    constexpr int kAtOnce = 64;
    if (polls_ < kAtOnce) {
      if (polls_++ == 0) idle_since_ = std::chrono::steady_clock::now();
      return false;
    }
    const auto idle = std::chrono::steady_clock::now() - idle_since_;
    if (idle < milliseconds(2)) return ::sched_yield(), false;
    std::this_thread::sleep_for(microseconds(idle < milliseconds(500) ? 50 : 500));
    return true;
  }
  /// Starts over, because something has happened.
  void reset() noexcept { polls_ = 0; }

 private:
  int polls_ = 0;
  std::chrono::steady_clock::time_point idle_since_{};
};

/// A block while it is sent or received.
struct Block {
  std::byte* data;  ///< memory of the program; null: the block was given up
  std::size_t bytes;
  std::size_t started = 0;
  std::size_t done = 0;
};

/// The blocks of one channel to or from one rank, sent in order and in slices. Both ends must start the blocks in one
/// order, with equal sizes.
/// Why: docs/decisions/0148-mpi-never-sees-the-programs-memory.md.
class BlockQueue {
 public:
  /// The largest size of one message in bytes.
  static constexpr std::size_t kSliceBytes = std::size_t{256} * 1024;

  enum class Direction { out, in };
  BlockQueue(const std::shared_ptr<DuplicatedComm>& comm, Direction direction, int rank, int tag)
      : calls_(comm->calls()), direction_(direction), rank_(rank), tag_(tag), slices_{Slice(comm), Slice(comm)} {}

  void push(const std::shared_ptr<Block>& block) {
    waiting_.push_back(block);
    progress();
  }
  /// Makes all progress that is possible without waiting. Returns whether anything moved.
  bool progress() {
    bool moved = false;
    while (failure_.empty() && under_way_ > 0 && finish_first()) moved = true;
    while (failure_.empty() && under_way_ < slices_.size() && !waiting_.empty() && start_next()) moved = true;
    return moved;
  }
  bool is_idle() const noexcept { return under_way_ == 0 && waiting_.empty(); }
  /// Why it cannot continue; empty: it can.
  const std::string& failure() const noexcept { return failure_; }

 private:
  struct Slice {
    explicit Slice(std::shared_ptr<DuplicatedComm> comm) : message(std::move(comm)) {}
    Message message;
    std::shared_ptr<Block> block;
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };

  bool start_next() {
    const auto block = waiting_.front();
    // Given up before it started: the peer would wait for a block that never comes, or send one that nobody takes.
    if (!block->data) return end("a block was given up"), false;
    auto& slice = slices_.at((first_ + under_way_) % slices_.size());
    slice.block = block;
    slice.begin = block->started;
    slice.bytes = std::min(kSliceBytes, block->bytes - block->started);
    // Room for a whole slice: ranks that disagree may send more than is expected, and Open MPI 4.1 then writes past the
    // end.
    auto* memory = slice.message.memory(direction_ == Direction::out ? slice.bytes : kSliceBytes);
    if (direction_ == Direction::out) std::memcpy(memory, block->data + slice.begin, slice.bytes);
    const int code = direction_ == Direction::out ? slice.message.send(slice.bytes, rank_, tag_)
                                                  : slice.message.recv(kSliceBytes, rank_, tag_);
    if (code != 0) return end(calls_.error_string(code)), false;
    block->started += slice.bytes;
    if (block->started == block->bytes) waiting_.pop_front();
    ++under_way_;
    return true;
  }
  bool finish_first() {
    auto& slice = slices_.at(first_);
    if (const int code = slice.message.test()) return end(calls_.error_string(code)), false;
    if (slice.message.under_way()) return false;
    if (slice.message.bytes() != slice.bytes)
      return end(formatted("{} bytes came where {} were expected", slice.message.bytes(), slice.bytes)), false;
    auto& block = *slice.block;
    if (direction_ == Direction::in && block.data)
      std::memcpy(block.data + slice.begin, slice.message.memory(), slice.bytes);
    block.done += slice.bytes;
    slice.block.reset();
    first_ = (first_ + 1) % slices_.size();
    --under_way_;
    return true;
  }
  void end(const std::string& failure) {
    failure_ = failure;
    waiting_.clear();
  }

  Calls& calls_;
  const Direction direction_;
  const int rank_;
  const int tag_;
  std::array<Slice, 2> slices_;
  std::size_t first_ = 0;      ///< index of the oldest slice in flight
  std::size_t under_way_ = 0;  ///< number of slices in flight
  std::deque<std::shared_ptr<Block>> waiting_;
  std::string failure_;
};

/// What a group stores about another rank. Thread safety: the group's.
struct Peer {
  explicit Peer(const std::shared_ptr<DuplicatedComm>& comm) : incoming(comm), abort_message(comm) {}
  std::vector<std::unique_ptr<Message>> sent;                        ///< frames sent that the peer has not taken yet
  Message incoming;                                                  ///< receive of the next frame from the peer
  std::deque<Frame> arrived;                                         ///< frames that arrived before `incoming`
  Message abort_message;                                             ///< frame with the cause, sent to the peer
  std::array<std::array<std::unique_ptr<BlockQueue>, 2>, 2> queues;  ///< queues of blocks by channel and direction
  bool has_ended = false;                                            ///< whether the peer sent the cause of its own end
  bool has_closed = false;                                           ///< whether it closed without a cause
  std::optional<TimePoint> left;                                     ///< when this rank noticed that the peer has left
};

namespace {

/// The size of a frame without its trailing zeros: MPI sends small messages eagerly, but 4 KiB only after a handshake.
/// Never 0, because an empty message means that the transport was closed.
std::size_t used_bytes(const Frame& frame) {
  const auto last =
      std::find_if(frame.bytes.rbegin(), frame.bytes.rend(), [](std::byte b) { return b != std::byte{}; });
  return std::max<std::size_t>(static_cast<std::size_t>(frame.bytes.rend() - last), 1);
}

}  // namespace
}  // namespace muster::comm::mpi

namespace muster::comm {
namespace {

using mpi::Message, mpi::Backoff, mpi::Peer, mpi::BlockQueue, mpi::DuplicatedComm, mpi::used_bytes;
using Clock = std::chrono::steady_clock;
using Kind = TransportFailure::Kind;

/// How long after a failure a rank waits for the others to receive its cause.
constexpr auto kLinger = std::chrono::seconds(1);
/// How long to wait for a rank's last messages, which may arrive after the notice that it has left.
constexpr auto kLastMessages = std::chrono::milliseconds(200);
/// How many more times a wait polls after its deadline.
constexpr int kLastPolls = 20;

class MpiTransport final : public Transport, private DuplicatedComm::Member {
 public:
  /// `ranks`: for each rank of the group, its rank in the communicator.
  MpiTransport(std::shared_ptr<DuplicatedComm> comm, std::vector<int> ranks, int first_tag, std::string name,
               std::chrono::milliseconds connect_timeout)
      : comm_(std::move(comm)), ranks_(std::move(ranks)), first_tag_(first_tag), name_(std::move(name)),
        connect_timeout_(connect_timeout), rank_(rank_index(ranks_, comm_->rank())) {
    for (int peer = 0; peer < size(); ++peer) peers_.push_back(std::make_unique<Peer>(comm_));
    comm_->add(this);
  }
  ~MpiTransport() override {
    close();
    comm_->remove(this);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(ranks_.size()); }
  void send_frame(int to, const Frame& frame, TimePoint) override {
    check_alive();
    auto& sent = peers_[to]->sent;
    auto free = std::find_if(sent.begin(), sent.end(), [&](const auto& message) { return is_taken(*message, to); });
    if (free == sent.end()) free = sent.insert(sent.end(), std::make_unique<Message>(comm_));
    const auto bytes = used_bytes(frame);
    std::memcpy((*free)->memory(kFrameBytes), frame.bytes.data(), bytes);
    check((*free)->send(bytes, ranks_[to], first_tag_ + DuplicatedComm::frames), to);
    // Frames are answered by frames. Each rank waits until its own were taken, so all ranks must post receives before
    // they wait.
    if (peers_[to]->arrived.empty()) post_frame(to);
  }
  void recv_frame(int from, Frame& frame, TimePoint deadline) override {
    Peer& peer = *peers_[from];
    // Also waits until the peer has taken ours: MPI may send only while this rank calls it, and this rank may compute
    // next.
    const auto ready = [&] {
      return (!peer.arrived.empty() || take_frame(from)) && (peer.has_ended || have_been_taken(from));
    };
    wait(from, Waiting::frame, ready, deadline);
    frame = peer.arrived.front();
    peer.arrived.pop_front();
  }
  Request send(int to, const void* data, std::size_t bytes, int channel) override {
    return post(to, static_cast<std::byte*>(const_cast<void*>(data)), bytes, channel, BlockQueue::Direction::out);
  }
  Request recv(int from, void* data, std::size_t bytes, int channel) override {
    return post(from, static_cast<std::byte*>(data), bytes, channel, BlockQueue::Direction::in);
  }
  void abort(const std::string& cause) noexcept override {
    {
      base::Lock lock(mutex_);
      if (aborted_) return;
      aborted_ = true;
      cause_ = cause;
    }
    comm_->fail();
    notify_peers();
  }
  void close() noexcept override {
    bool notifies = false;
    {
      base::Lock lock(mutex_);
      if (std::exchange(closed_, true)) return;
      notifies = std::exchange(aborted_, true);
      if (!notifies) cause_ = "the group is closed", notified_ = true;
    }
    if (!notifies) return say_goodbye();
    notify_peers();
    if (comm_->calls().may_call() == 0) linger();
  }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return connect_or_throw("MPI", name, rank_index(ranks, rank_), [&] { return subgroup(ranks, name); });
  }
  /// split() with the concrete type. Throws: TransportFailure.
  std::unique_ptr<MpiTransport> subgroup(const std::vector<int>& ranks, const std::string& name) {
    const int64_t number = agree_on_number(ranks, Clock::now() + connect_timeout_);
    std::vector<int> in_world;
    for (int rank : ranks) in_world.push_back(ranks_.at(static_cast<std::size_t>(rank)));
    const int tag = comm_->first_tag(number, in_world.front());
    return std::make_unique<MpiTransport>(comm_, std::move(in_world), tag, name, connect_timeout_);
  }

 private:
  enum class Waiting { frame, block };

  class Transfer final : public Transport::Transfer {
   public:
    Transfer(MpiTransport& transport, int peer, const BlockQueue& queue, std::shared_ptr<mpi::Block> block)
        : transport_(transport), peer_(peer), queue_(queue), block_(std::move(block)) {}
    ~Transfer() override { block_->data = nullptr; }
    void wait(TimePoint deadline) override {
      transport_.wait(
          peer_, Waiting::block, [this] { return is_done(); }, deadline);
    }

   private:
    bool is_done() const {
      if (block_->done == block_->bytes) return true;
      if (!queue_.failure().empty()) throw TransportFailure{Kind::closed, peer_, queue_.failure()};
      return false;
    }

    MpiTransport& transport_;
    const int peer_;
    const BlockQueue& queue_;
    const std::shared_ptr<mpi::Block> block_;
  };

  void end(const std::string& cause) noexcept override {
    base::Lock lock(mutex_);
    notified_ = true;
    if (std::exchange(aborted_, true)) return;
    cause_ = cause;
  }
  /// The first of the ranks chooses the number of the new group.
  int64_t agree_on_number(const std::vector<int>& ranks, TimePoint deadline) {
    Frame frame{};
    int64_t number = 0;
    if (ranks.front() != rank_) {
      recv_frame(ranks.front(), frame, deadline);
      if (is_abort(frame)) check_headers({}, rank_, frame, ranks.front(), name_);
      std::memcpy(&number, frame.bytes.data(), sizeof number);
      return number;
    }
    number = comm_->next_number();
    std::memcpy(frame.bytes.data(), &number, sizeof number);
    for (int peer : ranks)
      if (peer != rank_) send_frame(peer, frame, deadline);
    for (int peer : ranks)
      if (peer != rank_)
        wait(
            peer, Waiting::block, [&] { return have_been_taken(peer); }, deadline);
    return number;
  }
  Request post(int peer, std::byte* data, std::size_t bytes, int channel, BlockQueue::Direction direction) {
    check_alive();
    auto& queue = peers_[peer]->queues.at(channel).at(direction == BlockQueue::Direction::in);
    if (!queue)
      queue = std::make_unique<BlockQueue>(comm_, direction, ranks_[peer],
                                           first_tag_ + DuplicatedComm::first_channel + channel);
    if (queue->is_idle()) active_.push_back(queue.get());
    auto block = std::make_shared<mpi::Block>(mpi::Block{data, bytes});
    queue->push(block);
    return std::make_unique<Transfer>(*this, peer, *queue, std::move(block));
  }

  void check_alive() {
    {
      base::Lock lock(mutex_);
      if (!aborted_) {
        if (const int code = comm_->calls().may_call())
          throw TransportFailure{Kind::unusable, -1, "MU557: " + comm_->calls().error_string(code)};
        return;
      }
    }
    notify_peers();
    base::Lock lock(mutex_);
    throw TransportFailure{Kind::aborted, -1, cause_};
  }
  void check(int code, int peer) const {
    if (code != 0) throw TransportFailure{Kind::closed, peer, comm_->calls().error_string(code)};
  }
  /// Whether the message to or from the peer has been taken, so that it is no longer in flight.
  bool is_taken(Message& message, int peer) const {
    check(message.test(), peer);
    return !message.under_way();
  }
  void post_frame(int from) {
    auto& incoming = peers_[from]->incoming;
    if (peers_[from]->has_closed) return;
    if (!incoming.under_way())
      check(incoming.recv(kFrameBytes, ranks_[from], first_tag_ + DuplicatedComm::frames), from);
  }
  /// Takes the next frame from that rank if it has arrived.
  bool take_frame(int from) {
    Peer& peer = *peers_[from];
    if (peer.has_closed) return false;
    post_frame(from);
    if (!is_taken(peer.incoming, from)) return false;
    if (peer.incoming.bytes() == 0) {
      peer.has_closed = true;
      peer.left = Clock::now();
      return false;
    }
    auto& frame = peer.arrived.emplace_back();
    const auto bytes = peer.incoming.bytes();
    std::memcpy(frame.bytes.data(), peer.incoming.memory(), bytes);
    std::memset(frame.bytes.data() + bytes, 0, kFrameBytes - bytes);
    peer.has_ended |= is_abort(frame);
    return true;
  }
  bool have_been_taken(int to) {
    const auto& sent = peers_[to]->sent;
    return std::all_of(sent.begin(), sent.end(), [&](const auto& message) { return is_taken(*message, to); });
  }
  bool progress() {
    bool moved = false;
    for (auto* queue : active_) moved |= queue->progress();
    if (moved) std::erase_if(active_, [](const BlockQueue* queue) { return queue->is_idle(); });
    return moved;
  }
  template <class Ready>
  void wait(int peer, Waiting what, Ready ready, TimePoint deadline) {
    // A rank that was stopped past its deadline first reads what the others have sent meanwhile.
    int late = 0;
    for (Backoff backoff;;) {
      check_alive();
      const bool moved = progress();
      if (ready()) return;
      if (moved) backoff.reset();
      else if (backoff.wait()) watch(peer, what);
      if (Clock::now() < deadline) continue;
      watch(peer, what);
      if (++late > kLastPolls) throw TransportFailure{Kind::timeout, peer, ""};
    }
  }
  /// Checks whether a silent peer has ended its process, or the group by a frame behind others that this rank does not
  /// wait for.
  void watch(int peer, Waiting what) {
    Peer& silent = *peers_[peer];
    bool there = silent.incoming.under_way();
    if (!there && !silent.has_closed)
      check(comm_->calls().probe(ranks_[peer], first_tag_ + DuplicatedComm::frames, comm_->communicator(), there),
            peer);
    if (there) take_frame(peer);
    if (silent.has_ended && what == Waiting::block) {
      // The last of its frames contains the cause.
      if (!silent.arrived.empty()) check_headers({}, rank_, silent.arrived.back(), peer, name_);
      throw TransportFailure{Kind::closed, peer, "it ended the group"};
    }
    if (!silent.left && comm_->has_left(ranks_[peer])) silent.left = Clock::now();
    if (silent.left && Clock::now() - *silent.left >= kLastMessages)
      throw TransportFailure{Kind::closed, peer,
                             silent.has_closed ? "it has left the group" : "MPI has ended in its process"};
  }
  void notify_peers() noexcept {
    base::Lock lock(mutex_);
    // If this thread may not call MPI, the thread of the operations does it.
    if (notified_ || comm_->calls().may_call() != 0) return;
    notified_ = true;
    try {
      const Frame frame = abort_frame(rank_, cause_);
      const auto bytes = used_bytes(frame);
      for (int to = 0; to < size(); ++to) {
        if (to == rank_) continue;
        auto& abort_message = peers_[to]->abort_message;
        std::memcpy(abort_message.memory(bytes), frame.bytes.data(), bytes);
        static_cast<void>(abort_message.send(bytes, ranks_[to], first_tag_ + DuplicatedComm::frames));
      }
    } catch (const std::exception&) {
      // Out of memory: the peers will reach their timeout.
    }
  }
  /// Sends an empty message after all frames. The group of all ranks, which forms the others, is never left.
  void say_goodbye() noexcept {
    if (first_tag_ == 0) return;
    for (int to = 0; to < size(); ++to)
      if (to != rank_) comm_->calls().notify(ranks_[to], first_tag_ + DuplicatedComm::frames, comm_->communicator());
  }
  /// Whether the peer knows that the group has ended: it has taken this rank's cause, or sent its own.
  bool is_notified(int rank) {
    Peer& peer = *peers_[rank];
    if (is_taken(peer.abort_message, rank)) return true;
    while (!peer.has_ended && take_frame(rank)) peer.arrived.clear();
    return peer.has_ended;
  }
  void linger() noexcept {
    try {
      const auto all_are_notified = [this] {
        for (int peer = 0; peer < size(); ++peer)
          if (peer != rank_ && !is_notified(peer)) return false;
        return true;
      };
      const auto deadline = Clock::now() + kLinger;
      Backoff backoff;
      while (!all_are_notified() && Clock::now() < deadline) backoff.wait();
    } catch (...) {
      // The peer cannot be told.
    }
  }

  const std::shared_ptr<DuplicatedComm> comm_;
  const std::vector<int> ranks_;
  const int first_tag_;
  const std::string name_;
  const std::chrono::milliseconds connect_timeout_;
  const int rank_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<BlockQueue*> active_;

  base::Mutex mutex_;
  bool aborted_ MUSTER_GUARDED_BY(mutex_) = false;
  bool notified_ MUSTER_GUARDED_BY(mutex_) = false;  ///< whether the peers know of the end, or need not be told
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  std::string cause_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(const std::shared_ptr<DuplicatedComm>& comm, const std::string& name,
                                              std::chrono::milliseconds connect_timeout) {
  base::Lock lock(comm->split_mutex());
  const std::vector<int> all = all_ranks(comm->size());
  MpiTransport parent(comm, all, 0, name, connect_timeout);
  return connect_or_throw("MPI", name, comm->rank(), [&] { return parent.subgroup(all, name); });
}

}  // namespace muster::comm
