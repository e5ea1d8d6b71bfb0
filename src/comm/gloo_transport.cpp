#include "comm/gloo_transport.h"

#include <sched.h>
#include <signal.h>

#include <ctime>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/collectives.h"
#include "comm/handshake.h"
#include "comm/header.h"
#include "comm/wait_policy.h"
#include "muster/base/environment.h"

namespace muster::comm {

std::shared_ptr<TransportWatchdog> TransportWatchdog::of_process() {
  static base::Mutex mutex;
  static std::weak_ptr<TransportWatchdog> last MUSTER_GUARDED_BY(mutex);
  base::Lock lock(mutex);
  auto watch = last.lock();
  if (!watch) last = watch = std::make_shared<TransportWatchdog>();
  return watch;
}

TransportWatchdog::TransportWatchdog() : thread_([this] { run(); }) {}

TransportWatchdog::~TransportWatchdog() {
  {
    base::Lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TransportWatchdog::add(const void* owner, std::function<void()> look) {
  base::Lock lock(mutex_);
  looks_[owner] = std::move(look);
}

void TransportWatchdog::remove(const void* owner) {
  base::Lock lock(mutex_);
  looks_.erase(owner);
}

void TransportWatchdog::run() {
  // Signals are for the program's threads. Blocked SIGPIPE also keeps a socket whose peer has died from ending the
  // process.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  base::Lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [this]() MUSTER_REQUIRES(mutex_) { return ends_; }))
    for (const auto& [owner, look] : looks_) look();
}

namespace {

using c10d::ProcessGroupGloo;
using Device = std::shared_ptr<::gloo::transport::Device>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// gloo ends the process if a message matches a receive of another size. So the tag of a block is its size, and frames,
// which all have one size, have a separate tag.
constexpr int kFrameTag = 0;
/// A tag with which nothing is ever sent.
constexpr int kSilentTag = std::numeric_limits<int>::max();

int block_tag(std::size_t bytes, int channel) { return static_cast<int>(2 * bytes) + channel; }

std::vector<at::Tensor> view(void* data, std::size_t bytes) {
  return {at::from_blob(data, {static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte))};
}

std::vector<at::Tensor> view_of(Frame& frame) { return view(frame.bytes.data(), kFrameBytes); }

/// Threads started while this object exists run under SCHED_BATCH, so they do not preempt other threads. gloo's thread
/// spins on a connection's lock; if it preempted the holder on the same core, it would spin for its whole time slice,
/// which takes milliseconds.
class BatchSchedulingGuard {
 public:
  BatchSchedulingGuard() {
    sched_param none{};
    changed_ = ::sched_getscheduler(0) == SCHED_OTHER && ::sched_setscheduler(0, SCHED_BATCH, &none) == 0;
  }
  BatchSchedulingGuard(const BatchSchedulingGuard&) = delete;
  BatchSchedulingGuard& operator=(const BatchSchedulingGuard&) = delete;
  ~BatchSchedulingGuard() {
    sched_param none{};
    if (changed_) ::sched_setscheduler(0, SCHED_OTHER, &none);
  }

 private:
  bool changed_;
};

Device make_device(const GlooSetup& setup) {
  BatchSchedulingGuard guard;
  std::string interface = setup.interface;
  if (interface.empty()) {
    interface = Environment::of_process().find("GLOO_SOCKET_IFNAME").value_or("");
    interface = interface.substr(0, interface.find(','));
  }
  if (!interface.empty()) return ProcessGroupGloo::createDeviceForInterface(interface);
  if (setup.one_node) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return ProcessGroupGloo::createDefaultDevice();
}

c10::intrusive_ptr<ProcessGroupGloo> connect_gloo(const GlooSetup& setup, const Device& device, const std::string& name,
                                                  int rank, int size) {
  auto options = ProcessGroupGloo::Options::create(setup.connect_timeout);
  options->devices.push_back(device);
  options->threads = 1;
  auto store = c10::make_intrusive<c10d::PrefixStore>("gloo/" + name, setup.store);
  return c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
}

/// Keeps SIGPIPE from this thread: gloo writes to sockets whose other end may have died.
class SigpipeBlocker {
 public:
  SigpipeBlocker() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlocker() {
    if (::sigismember(&before_, SIGPIPE)) return;
    sigset_t pending;
    if (::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE)) {
      timespec none{};
      ::sigtimedwait(&pipe_, nullptr, &none);
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocker(const SigpipeBlocker&) = delete;
  SigpipeBlocker& operator=(const SigpipeBlocker&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

/// Connects. The threads that gloo starts in `make` never see SIGPIPE.
template <class F>
auto connect_gloo(const std::string& name, int rank, F make) {
  SigpipeBlocker blocker;
  return connect_or_throw("gloo", name, rank, make,
                          "Check that the ranks reach each other, and name the network interface "
                          "(GLOO_SOCKET_IFNAME).");
}

/// Why a wait failed, in gloo's words; empty if it succeeded.
std::string failure_of(const WorkPtr& work, TimePoint deadline) {
  try {
    return work->wait(left_until(deadline)) ? "" : "the wait was ended";
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

// Number of frame receives posted per peer. A peer may be one operation ahead and then abort the group. Together with
// the frame that is not consumed yet that makes three, so a peer never has to wait before it sends.
constexpr int kReady = 3;

class GlooTransport final : public Transport {
 public:
  GlooTransport(GlooSetup setup, Device device, const std::string& name, int rank, int size)
      : setup_(std::move(setup)), device_(std::move(device)), name_(name), rank_(rank), size_(size),
        gloo_(connect_gloo(setup_, device_, name, rank, size)), peers_(size), lost_(size),
        watch_(TransportWatchdog::of_process()) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      peers_[peer] = std::make_unique<Peer>();
      for (int slot = 0; slot < kReady; ++slot) post_frame(peer, slot);
    }
    watch_->add(this, [this] { look(); });
  }

  ~GlooTransport() override { close(); }

  /// A transport whose ranks have proved that they belong to the job. From here on no rank needs the store to connect.
  static std::unique_ptr<Transport> connected(const GlooSetup& setup, Device device, const std::string& name, int rank,
                                              int size) {
    auto transport = std::make_unique<GlooTransport>(setup, std::move(device), name, rank, size);
    shake_hands(*transport, setup.secret, name, setup.connect_timeout);
    return transport;
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void send_frame(int to, const Frame& frame, TimePoint deadline) override {
    check_alive();
    SigpipeBlocker blocker;
    Peer& peer = *peers_[to];
    // Posted only now, not right after the frame was taken: a write to a peer that left would make its last blocks
    // fail.
    if (peer.taken >= 0) post_frame(to, std::exchange(peer.taken, -1));
    peer.turn ^= 1;
    auto& sent = peer.sent[peer.turn];
    if (sent) wait(sent, to, deadline);
    peer.out[peer.turn] = frame;
    sent = post(to, [&] { return gloo_->send(peer.out_view[peer.turn], to, kFrameTag); });
  }

  void recv_frame(int from, Frame& frame, TimePoint deadline) override {
    Peer& peer = *peers_[from];
    if (peer.taken >= 0) post_frame(from, std::exchange(peer.taken, -1));
    wait(peer.received[peer.next], from, deadline);
    frame = peer.in[peer.next];
    peer.taken = std::exchange(peer.next, (peer.next + 1) % kReady);
  }

  Request send(int to, const void* data, std::size_t bytes, int channel) override {
    check_alive();
    SigpipeBlocker blocker;
    auto block = view(const_cast<void*>(data), bytes);
    return std::make_unique<Block>(*this, to,
                                   post(to, [&] { return gloo_->send(block, to, block_tag(bytes, channel)); }));
  }

  Request recv(int from, void* data, std::size_t bytes, int channel) override {
    check_alive();
    SigpipeBlocker blocker;
    auto block = view(data, bytes);
    return std::make_unique<Block>(*this, from,
                                   post(from, [&] { return gloo_->recv(block, from, block_tag(bytes, channel)); }));
  }

  void abort(const std::string& cause) noexcept override {
    try {
      SigpipeBlocker blocker;
      base::Lock lock(mutex_);
      if (aborted_ || !gloo_) return;
      aborted_ = true;
      cause_ = cause;
      for (int to = 0; to < size_; ++to) {
        if (to == rank_) continue;
        Peer& peer = *peers_[to];
        peer.abort_frame = abort_frame(rank_, cause);
        auto bytes = view_of(peer.abort_frame);
        peer.abort_frame_sent = post(to, [&] { return gloo_->send(bytes, to, kFrameTag); });
      }
      if (waited_for_) waited_for_->abort();
    } catch (const std::exception&) {
      // Out of memory: the peers will notice when the connections close.
    }
  }
  void close() noexcept override {
    watch_->remove(this);
    SigpipeBlocker blocker;
    if (!gloo_) return;
    base::Lock lock(mutex_);
    if (aborted_) {
      lock.unlock();
      linger();
      lock.lock();
    }
    aborted_ = true;
    silent_receives_.clear();
    peers_.clear();
    gloo_.reset();
  }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    const int new_rank = rank_index(ranks, rank_), new_size = static_cast<int>(ranks.size());
    return connect_gloo(name, new_rank, [&] { return connected(setup_, device_, name, new_rank, new_size); });
  }

 private:
  struct Peer {
    Frame in[kReady];
    Frame out[2];
    Frame abort_frame;
    std::vector<at::Tensor> in_view[kReady] = {view_of(in[0]), view_of(in[1]), view_of(in[2])};
    std::vector<at::Tensor> out_view[2] = {view_of(out[0]), view_of(out[1])};
    WorkPtr received[kReady];
    WorkPtr sent[2];
    WorkPtr abort_frame_sent;
    int next = 0;    ///< the slot of the next frame
    int taken = -1;  ///< the slot to post again; -1: none
    int turn = 0;
  };

  class Block final : public Transfer {
   public:
    Block(GlooTransport& transport, int peer, WorkPtr work)
        : transport_(transport), peer_(peer), work_(std::move(work)) {}
    void wait(TimePoint deadline) override { transport_.wait(work_, peer_, deadline); }

   private:
    GlooTransport& transport_;
    int peer_;
    WorkPtr work_;
  };

  /// Returns null if the connection is closed. Only wait() reports that, since an earlier frame may contain the cause.
  template <class F>
  WorkPtr post(int peer, F start) {
    try {
      return start();
    } catch (const std::exception& failure) {
      base::Lock lock(lost_mutex_);
      lost_[peer] = failure.what();
      return {};
    }
  }

  std::string lost_of(int peer) {
    base::Lock lock(lost_mutex_);
    return lost_[peer];
  }

  void post_frame(int from, int slot) {
    SigpipeBlocker blocker;
    Peer& peer = *peers_[from];
    peer.received[slot] = post(from, [&] { return gloo_->recv(peer.in_view[slot], from, kFrameTag); });
  }

  void check_alive() {
    base::Lock lock(mutex_);
    if (aborted_) throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
  }

  void wait(const WorkPtr& work, int peer, TimePoint deadline) {
    {
      base::Lock lock(mutex_);
      if (aborted_) throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
      if (!work) throw TransportFailure{TransportFailure::Kind::closed, peer, lost_of(peer)};
      waited_for_ = work;
      waited_peer_ = peer;
      looks_ = 0;
    }
    std::string failure = failure_of(work, deadline);
    base::Lock lock(mutex_);
    waited_for_.reset();
    if (failure.empty()) return;
    if (aborted_) throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
    bool late = std::chrono::steady_clock::now() >= deadline;
    if (const auto lost = lost_of(peer); !late && !lost.empty()) failure = lost;
    throw TransportFailure{late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer, failure};
  }
  /// Reads what the peers still send until each has sent an abort frame or left, for at most one second. Closing a
  /// connection at once could discard data that a peer has not read yet.
  void linger() noexcept {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (auto& peer : peers_) {
      for (int frames = 0; peer && frames < kReady; ++frames) {
        auto& received = peer->received[peer->next];
        if (frames == kReady - 1 && peer->taken >= 0) break;
        if (!received || !failure_of(received, deadline).empty() || read_header(peer->in[peer->next]).is_abort) break;
        peer->next = (peer->next + 1) % kReady;
      }
    }
  }
  /// Ends the current wait if its connection is gone. gloo forgets a send if its own thread finds the connection broken
  /// when it starts to write; then nothing else would end that wait before its deadline.
  void look() noexcept {
    base::Lock lock(mutex_);
    // Every look that reaches the end posts one more receive, so looks get exponentially rarer.
    if (!waited_for_ || aborted_ || ++looks_ < 2 || (looks_ & (looks_ - 1)) != 0) return;
    try {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      auto receive = post(waited_peer_, [&, from = waited_peer_] { return gloo_->recv(nothing, from, kSilentTag); });
      receive ? silent_receives_.push_back(std::move(receive)) : waited_for_->abort();
    } catch (const std::exception&) {
      // Out of memory: the next look may have some.
    }
  }

  const GlooSetup setup_;
  const Device device_;
  const std::string name_;
  const int rank_;
  const int size_;
  c10::intrusive_ptr<ProcessGroupGloo> gloo_;
  std::vector<std::unique_ptr<Peer>> peers_;

  base::Mutex lost_mutex_;  // separate from mutex_, because abort() posts while it holds mutex_
  std::vector<std::string> lost_ MUSTER_GUARDED_BY(lost_mutex_);  ///< why posting failed, by peer
  base::Mutex mutex_;
  bool aborted_ MUSTER_GUARDED_BY(mutex_) = false;
  std::string cause_ MUSTER_GUARDED_BY(mutex_);
  WorkPtr waited_for_ MUSTER_GUARDED_BY(mutex_);
  int waited_peer_ MUSTER_GUARDED_BY(mutex_) = -1;
  unsigned looks_ MUSTER_GUARDED_BY(mutex_) = 0;  ///< number of look() calls since that wait began
  std::vector<WorkPtr> silent_receives_ MUSTER_GUARDED_BY(mutex_);

  const std::shared_ptr<TransportWatchdog> watch_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(const GlooSetup& setup, const std::string& name, int rank, int size) {
  return connect_gloo(name, rank,
                      [&] { return GlooTransport::connected(setup, make_device(setup), name, rank, size); });
}

c10::intrusive_ptr<c10d::Backend> make_raw_gloo(const GlooSetup& setup, const std::string& name, int rank, int size) {
  return connect_gloo(name, rank, [&]() -> c10::intrusive_ptr<c10d::Backend> {
    return connect_gloo(setup, make_device(setup), name, rank, size);
  });
}

}  // namespace muster::comm
