#include "dist/gloo_transport.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "dist/header.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::dist {
namespace {

using c10d::ProcessGroupGloo;
using Device = std::shared_ptr<::gloo::transport::Device>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// gloo ends the process if a message meets a receive of another size, so the tag of a block is its size and frames,
// which have one size, have a tag of their own.
constexpr int kFrameTag = 0;

int block_tag(std::size_t bytes, int lane) { return static_cast<int>(2 * bytes) + lane; }

std::vector<at::Tensor> view(void* data, std::size_t bytes) {
  return {at::from_blob(data, {static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte))};
}

Device make_device(const GlooSetup& setup) {
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

/// Runs `make`; what gloo throws becomes a CommError.
template <class F>
auto connecting(const std::string& name, int rank, F make) {
  std::string reason;
  try {
    return make();
  } catch (const TransportFailure& failure) {
    reason = failure.detail;
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  throw CommError("MU058", format("rank {} could not connect group {} by gloo: {}. Check that the ranks reach each other, "
                                  "and name the network interface (GLOO_SOCKET_IFNAME).",
                                  rank, name, reason.substr(0, 300)));
}

class GlooTransport final : public Transport {
 public:
  GlooTransport(GlooSetup setup, Device device, const std::string& name, int rank, int size)
      : setup_(std::move(setup)), device_(std::move(device)), rank_(rank), size_(size),
        gloo_(connect_gloo(setup_, device_, name, rank, size)), peers_(size) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      peers_[peer] = std::make_unique<Peer>();
      post_frame(peer);
    }
  }

  ~GlooTransport() override { close(); }

  /// A first frame to and from everybody: when it is done, nobody needs the store any more to be connected.
  void greet() {
    auto deadline = std::chrono::steady_clock::now() + setup_.connect_timeout;
    Frame frame{};
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) send_frame(peer, frame, deadline);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) receive_frame(peer, frame, deadline);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void send_frame(int to, const Frame& frame, TimePoint deadline) override {
    check_alive();
    Peer& peer = *peers_[to];
    peer.turn ^= 1;
    auto& sent = peer.sent[peer.turn];
    if (sent) wait(sent, to, deadline);
    peer.out[peer.turn] = frame;
    sent = posted(to, [&] { return gloo_->send(peer.out_view[peer.turn], to, kFrameTag); });
  }

  void receive_frame(int from, Frame& frame, TimePoint deadline) override {
    check_alive();
    Peer& peer = *peers_[from];
    wait(peer.received, from, deadline);
    frame = peer.in;
    post_frame(from);
  }

  Ticket send(int to, const void* data, std::size_t bytes, int lane) override {
    check_alive();
    auto block = view(const_cast<void*>(data), bytes);
    return std::make_unique<Block>(*this, to, posted(to, [&] { return gloo_->send(block, to, block_tag(bytes, lane)); }));
  }

  Ticket receive(int from, void* data, std::size_t bytes, int lane) override {
    check_alive();
    auto block = view(data, bytes);
    return std::make_unique<Block>(*this, from, posted(from, [&] { return gloo_->recv(block, from, block_tag(bytes, lane)); }));
  }

  void abort(const std::string& cause) noexcept override;
  void close() noexcept override;
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  struct Peer {
    Frame in;
    Frame out[2];
    Frame farewell;
    std::vector<at::Tensor> in_view = view(in.bytes.data(), kFrameBytes);
    std::vector<at::Tensor> out_view[2] = {view(out[0].bytes.data(), kFrameBytes), view(out[1].bytes.data(), kFrameBytes)};
    WorkPtr received;
    WorkPtr sent[2];
    WorkPtr farewell_sent;
    int turn = 0;
  };

  class Block final : public Transfer {
   public:
    Block(GlooTransport& transport, int peer, WorkPtr work) : transport_(transport), peer_(peer), work_(std::move(work)) {}
    void wait(TimePoint deadline) override { transport_.wait(work_, peer_, deadline); }

   private:
    GlooTransport& transport_;
    int peer_;
    WorkPtr work_;
  };

  template <class F>
  WorkPtr posted(int peer, F post) {
    try {
      return post();
    } catch (const std::exception& failure) {
      throw TransportFailure{TransportFailure::Kind::closed, peer, failure.what()};
    }
  }

  void post_frame(int from) {
    Peer& peer = *peers_[from];
    peer.received = posted(from, [&] { return gloo_->recv(peer.in_view, from, kFrameTag); });
  }

  void check_alive() {
    std::lock_guard lock(mutex_);
    if (aborted_) throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
  }

  void wait(const WorkPtr& work, int peer, TimePoint deadline);

  const GlooSetup setup_;
  const Device device_;
  const int rank_;
  const int size_;
  c10::intrusive_ptr<ProcessGroupGloo> gloo_;
  std::vector<std::unique_ptr<Peer>> peers_;

  std::mutex mutex_;
  bool aborted_ = false;
  std::string cause_;
  WorkPtr waited_for_;
};

void GlooTransport::wait(const WorkPtr& work, int peer, TimePoint deadline) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
    waited_for_ = work;
  }
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  std::optional<std::string> failure;
  try {
    if (!work->wait(std::max(left, std::chrono::milliseconds(1)))) failure = "the wait was ended";
  } catch (const std::exception& thrown) {
    failure = thrown.what();
  }
  std::lock_guard lock(mutex_);
  waited_for_.reset();
  if (!failure) return;
  if (aborted_) throw TransportFailure{TransportFailure::Kind::aborted, -1, cause_};
  bool late = std::chrono::steady_clock::now() >= deadline;
  throw TransportFailure{late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer, *failure};
}

void GlooTransport::abort(const std::string& cause) noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (aborted_ || !gloo_) return;
    aborted_ = true;
    cause_ = cause;
    for (int to = 0; to < size_; ++to) {
      if (to == rank_) continue;
      Peer& peer = *peers_[to];
      peer.farewell = abort_frame(rank_, cause);
      auto bytes = view(peer.farewell.bytes.data(), kFrameBytes);
      try {
        peer.farewell_sent = gloo_->send(bytes, to, kFrameTag);
      } catch (const std::exception&) {
        // This peer is gone already; the others still have to hear of it.
      }
    }
    if (waited_for_) waited_for_->abort();
  } catch (const std::exception&) {
    // Out of memory: the peers learn of it by the closing of the connections.
  }
}

void GlooTransport::close() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  peers_.clear();
  gloo_.reset();
}

std::unique_ptr<Transport> GlooTransport::split(const std::vector<int>& ranks, const std::string& name) {
  int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  return connecting(name, place, [&] {
    auto transport = std::make_unique<GlooTransport>(setup_, device_, name, place, static_cast<int>(ranks.size()));
    transport->greet();
    return transport;
  });
}

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(const GlooSetup& setup, const std::string& name, int rank, int size) {
  return connecting(name, rank, [&] {
    auto transport = std::make_unique<GlooTransport>(setup, make_device(setup), name, rank, size);
    transport->greet();
    return transport;
  });
}

c10::intrusive_ptr<c10d::Backend> make_raw_gloo(const GlooSetup& setup, const std::string& name, int rank, int size) {
  return connecting(name, rank, [&]() -> c10::intrusive_ptr<c10d::Backend> {
    return connect_gloo(setup, make_device(setup), name, rank, size);
  });
}

}  // namespace muster::dist
