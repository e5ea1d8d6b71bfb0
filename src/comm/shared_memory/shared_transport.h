#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared_memory/areas.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Sends frames and blocks through shared memory. Blocks of a pair of ranks arrive in the order in which they were
/// sent, so they are received in that order, whatever their channel. A rank sends a frame only after it has received
/// the peer's last frame but one, as in every exchange, so two slots are enough.
class SharedTransport final : public Transport {
 public:
  explicit SharedTransport(std::shared_ptr<SharedAreas> areas)
      : areas_(std::move(areas)), peers_(static_cast<std::size_t>(areas_->size())) {}

  /// The mailbox for the next frame to that rank. send() counts it as sent; notify_all() then wakes the peer.
  Mailbox& box_to(int peer) { return areas_->channel(rank(), peer).boxes[peers_[peer].frames_sent % 2]; }
  void send(int peer) {
    Mailbox& box = box_to(peer);
    box.number.store(++peers_[peer].frames_sent, std::memory_order_release);
  }
  /// The next frame of that rank. It stays valid until two more frames were received. Throws: TransportFailure.
  const Mailbox& box_from(int peer, TimePoint deadline);

  int rank() const noexcept override { return areas_->rank(); }
  int size() const noexcept override { return areas_->size(); }
  void send_frame(int to, const Frame& frame, TimePoint deadline) override;
  void recv_frame(int from, Frame& frame, TimePoint deadline) override { frame = box_from(from, deadline).frame; }
  Request send(int to, const void* data, std::size_t bytes, int channel) override;
  Request recv(int from, void* data, std::size_t bytes, int channel) override;
  void abort(const std::string& cause) noexcept override { areas_->abort(cause); }
  void close() noexcept override { areas_->close(); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_unique<SharedTransport>(areas_->split(ranks, name));
  }

 private:
  class Block;
  struct Peer {
    uint64_t frames_sent = 0, frames_received = 0;
    uint64_t pieces_sent = 0, pieces_received = 0;
    std::deque<Block*> sends, receives;
  };

  bool can_advance() const;
  /// Copies what can be copied now. Returns whether there was anything.
  bool advance();
  bool advance_sends(int peer);
  bool advance_receives(int peer);
  void wait(const Block& block, TimePoint deadline);

  const std::shared_ptr<SharedAreas> areas_;
  std::vector<Peer> peers_;
};

}  // namespace muster::comm
