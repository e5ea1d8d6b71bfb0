#include "comm/mpi/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/connecting.h"
#include "comm/header.h"
#include "comm/mpi/backoff.h"
#include "comm/mpi/peer.h"
#include "comm/rank_index.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

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
  void send_frame(int to, const Frame& frame, TimePoint deadline) override;
  void recv_frame(int from, Frame& frame, TimePoint deadline) override;
  Request send(int to, const void* data, std::size_t bytes, int channel) override {
    return post(to, static_cast<std::byte*>(const_cast<void*>(data)), bytes, channel, BlockQueue::Direction::out);
  }
  Request recv(int from, void* data, std::size_t bytes, int channel) override {
    return post(from, static_cast<std::byte*>(data), bytes, channel, BlockQueue::Direction::in);
  }
  void abort(const std::string& cause) noexcept override;
  void close() noexcept override;
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return connect_or_throw("MPI", name, rank_index(ranks, rank_), [&] { return subgroup(ranks, name); });
  }
  /// split() with the concrete type. Throws: TransportFailure.
  std::unique_ptr<MpiTransport> subgroup(const std::vector<int>& ranks, const std::string& name);

 private:
  class Transfer;
  enum class Waiting { frame, block };

  void end(const std::string& cause) noexcept override;
  int64_t agree_on_number(const std::vector<int>& ranks, TimePoint deadline);
  Request post(int peer, std::byte* data, std::size_t bytes, int channel, BlockQueue::Direction direction);

  void check_alive();
  void check(int code, int peer) const {
    if (code != 0) throw TransportFailure{Kind::closed, peer, comm_->calls().error_string(code)};
  }
  void post_frame(int from);
  bool take_frame(int from);
  bool have_been_taken(int to);
  bool progress();
  template <class Ready>
  void wait(int peer, Waiting what, Ready ready, TimePoint deadline);
  void watch(int peer, Waiting what);
  void notify_peers() noexcept;
  void say_goodbye() noexcept;
  bool is_notified(int peer);
  void linger() noexcept;

  const std::shared_ptr<DuplicatedComm> comm_;
  const std::vector<int> ranks_;
  const int first_tag_;
  const std::string name_;
  const std::chrono::milliseconds connect_timeout_;
  const int rank_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<BlockQueue*> active_;

  std::mutex mutex_;
  bool aborted_ = false;
  bool notified_ = false;  ///< whether the peers know of the end, or need not be told
  bool closed_ = false;
  std::string cause_;
};

class MpiTransport::Transfer final : public Transport::Transfer {
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

void MpiTransport::check_alive() {
  {
    std::lock_guard lock(mutex_);
    if (!aborted_) {
      if (const int code = comm_->calls().may_call())
        throw TransportFailure{Kind::unusable, -1, "MU557: " + comm_->calls().error_string(code)};
      return;
    }
  }
  notify_peers();
  std::lock_guard lock(mutex_);
  throw TransportFailure{Kind::aborted, -1, cause_};
}

void MpiTransport::send_frame(int to, const Frame& frame, TimePoint) {
  check_alive();
  auto& sent = peers_[to]->sent;
  const auto is_free = [&](const auto& message) {
    check(message->test(), to);
    return !message->under_way();
  };
  auto free = std::find_if(sent.begin(), sent.end(), is_free);
  if (free == sent.end()) free = sent.insert(sent.end(), std::make_unique<Message>(comm_));
  const auto bytes = used_bytes(frame);
  std::memcpy((*free)->memory(kFrameBytes), frame.bytes.data(), bytes);
  check((*free)->send(bytes, ranks_[to], first_tag_ + DuplicatedComm::frames), to);
  // Frames are answered by frames. Each rank waits until its own were taken, so all ranks must post receives before
  // they wait.
  if (peers_[to]->arrived.empty()) post_frame(to);
}

void MpiTransport::post_frame(int from) {
  auto& incoming = peers_[from]->incoming;
  if (peers_[from]->has_closed) return;
  if (!incoming.under_way()) check(incoming.recv(kFrameBytes, ranks_[from], first_tag_ + DuplicatedComm::frames), from);
}

/// Takes the next frame from that rank if it has arrived.
bool MpiTransport::take_frame(int from) {
  Peer& peer = *peers_[from];
  if (peer.has_closed) return false;
  post_frame(from);
  check(peer.incoming.test(), from);
  if (peer.incoming.under_way()) return false;
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

bool MpiTransport::have_been_taken(int to) {
  const auto is_taken = [&](const auto& message) {
    check(message->test(), to);
    return !message->under_way();
  };
  return std::all_of(peers_[to]->sent.begin(), peers_[to]->sent.end(), is_taken);
}

void MpiTransport::recv_frame(int from, Frame& frame, TimePoint deadline) {
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

Transport::Request MpiTransport::post(int peer, std::byte* data, std::size_t bytes, int channel,
                                      BlockQueue::Direction direction) {
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

bool MpiTransport::progress() {
  bool moved = false;
  for (auto* queue : active_) moved |= queue->progress();
  if (moved) std::erase_if(active_, [](const BlockQueue* queue) { return queue->is_idle(); });
  return moved;
}

template <class Ready>
void MpiTransport::wait(int peer, Waiting what, Ready ready, TimePoint deadline) {
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
void MpiTransport::watch(int peer, Waiting what) {
  Peer& silent = *peers_[peer];
  bool there = silent.incoming.under_way();
  if (!there && !silent.has_closed)
    check(comm_->calls().probe(ranks_[peer], first_tag_ + DuplicatedComm::frames, comm_->communicator(), there), peer);
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

void MpiTransport::abort(const std::string& cause) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    cause_ = cause;
  }
  comm_->fail();
  notify_peers();
}

void MpiTransport::notify_peers() noexcept {
  std::lock_guard lock(mutex_);
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

/// Whether the peer knows that the group has ended: it has taken this rank's cause, or sent its own.
bool MpiTransport::is_notified(int rank) {
  Peer& peer = *peers_[rank];
  check(peer.abort_message.test(), rank);
  if (!peer.abort_message.under_way()) return true;
  while (!peer.has_ended && take_frame(rank)) peer.arrived.clear();
  return peer.has_ended;
}

void MpiTransport::linger() noexcept {
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

void MpiTransport::close() noexcept {
  bool notifies = false;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    notifies = std::exchange(aborted_, true);
    if (!notifies) cause_ = "the group is closed", notified_ = true;
  }
  if (!notifies) return say_goodbye();
  notify_peers();
  if (comm_->calls().may_call() == 0) linger();
}

/// Sends an empty message after all frames. The group of all ranks, which forms the others, is never left.
void MpiTransport::say_goodbye() noexcept {
  if (first_tag_ == 0) return;
  for (int to = 0; to < size(); ++to)
    if (to != rank_) comm_->calls().notify(ranks_[to], first_tag_ + DuplicatedComm::frames, comm_->communicator());
}

void MpiTransport::end(const std::string& cause) noexcept {
  std::lock_guard lock(mutex_);
  notified_ = true;
  if (std::exchange(aborted_, true)) return;
  cause_ = cause;
}

/// The first of the ranks chooses the number of the new group.
int64_t MpiTransport::agree_on_number(const std::vector<int>& ranks, TimePoint deadline) {
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

std::unique_ptr<MpiTransport> MpiTransport::subgroup(const std::vector<int>& ranks, const std::string& name) {
  const int64_t number = agree_on_number(ranks, Clock::now() + connect_timeout_);
  std::vector<int> in_world;
  for (int rank : ranks) in_world.push_back(ranks_.at(static_cast<std::size_t>(rank)));
  const int tag = comm_->first_tag(number, in_world.front());
  return std::make_unique<MpiTransport>(comm_, std::move(in_world), tag, name, connect_timeout_);
}

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(const std::shared_ptr<DuplicatedComm>& comm, const std::string& name,
                                              std::chrono::milliseconds connect_timeout) {
  std::lock_guard lock(comm->split_mutex());
  const std::vector<int> all = all_ranks(comm->size());
  MpiTransport parent(comm, all, 0, name, connect_timeout);
  return connect_or_throw("MPI", name, comm->rank(), [&] { return parent.subgroup(all, name); });
}

}  // namespace muster::comm
