#include "comm/shared_memory/shared_transport.h"

#include <algorithm>
#include <cstring>

namespace muster::comm {

/// A block while it is sent or received, in pieces.
class SharedTransport::Block final : public Transport::Transfer {
 public:
  Block(SharedTransport& transport, int peer, void* data, std::size_t bytes, bool sends)
      : transport_(transport), peer_(peer), at_(static_cast<std::byte*>(data)), left_(bytes), sends_(sends) {
    queue().push_back(this);
  }
  ~Block() override { std::erase(queue(), this); }
  void wait(TimePoint deadline) override {
    if (left_ > 0) transport_.wait(*this, deadline);
  }

  int peer() const { return peer_; }
  std::size_t left() const { return left_; }
  std::size_t next(std::size_t limit) const { return std::min(limit, left_); }
  std::byte* at() const { return at_; }
  void took(std::size_t bytes) { at_ += bytes, left_ -= bytes; }

 private:
  std::deque<Block*>& queue() const {
    auto& peer = transport_.peers_[peer_];
    return sends_ ? peer.sends : peer.receives;
  }

  SharedTransport& transport_;
  const int peer_;
  std::byte* at_;
  std::size_t left_;
  const bool sends_;
};

const Mailbox& SharedTransport::box_from(int peer, TimePoint deadline) {
  uint64_t& received = peers_[peer].frames_received;
  const Mailbox& box = areas_->channel(peer, rank()).boxes[received % 2];
  areas_->wait(
      peer, [&] { return box.number.load(std::memory_order_acquire) > received; }, deadline);
  ++received;
  return box;
}

void SharedTransport::send_frame(int to, const Frame& frame, TimePoint) {
  Mailbox& box = box_to(to);
  box.frame = frame;
  box.digest = 0;
  send(to);
  areas_->notify_all();
}

Transport::Request SharedTransport::send(int to, const void* data, std::size_t bytes, int) {
  return std::make_unique<Block>(*this, to, const_cast<void*>(data), bytes, true);
}

Transport::Request SharedTransport::recv(int from, void* data, std::size_t bytes, int) {
  return std::make_unique<Block>(*this, from, data, bytes, false);
}

bool SharedTransport::can_advance() const {
  for (int peer = 0; peer < size(); ++peer) {
    const Peer& own = peers_[peer];
    const Channel& theirs = areas_->channel(peer, rank());
    if (!own.sends.empty() && theirs.taken.load(std::memory_order_acquire) + 2 > own.pieces_sent) return true;
    if (!own.receives.empty() && theirs.filled.load(std::memory_order_acquire) > own.pieces_received) return true;
  }
  return false;
}

bool SharedTransport::advance_sends(int peer) {
  Peer& own = peers_[peer];
  const auto taken = areas_->channel(peer, rank()).taken.load(std::memory_order_acquire);
  const auto before = own.pieces_sent;
  while (!own.sends.empty() && own.pieces_sent < taken + 2) {
    Block& block = *own.sends.front();
    areas_->ensure_blocks();
    const std::size_t bytes = block.next(areas_->layout().block_bytes);
    std::memcpy(areas_->blocks(rank(), peer, own.pieces_sent++), block.at(), bytes);
    block.took(bytes);
    if (block.left() == 0) own.sends.pop_front();
  }
  if (own.pieces_sent == before) return false;
  areas_->channel(rank(), peer).filled.store(own.pieces_sent, std::memory_order_release);
  return true;
}

bool SharedTransport::advance_receives(int peer) {
  Peer& own = peers_[peer];
  const auto filled = areas_->channel(peer, rank()).filled.load(std::memory_order_acquire);
  const auto before = own.pieces_received;
  while (!own.receives.empty() && own.pieces_received < filled) {
    Block& block = *own.receives.front();
    const std::size_t bytes = block.next(areas_->layout().block_bytes);
    std::memcpy(block.at(), areas_->blocks(peer, rank(), own.pieces_received++), bytes);
    block.took(bytes);
    if (block.left() == 0) own.receives.pop_front();
  }
  if (own.pieces_received == before) return false;
  areas_->channel(rank(), peer).taken.store(own.pieces_received, std::memory_order_release);
  return true;
}

bool SharedTransport::advance() {
  bool any = false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    any |= advance_sends(peer);
    any |= advance_receives(peer);
  }
  return any;
}

void SharedTransport::wait(const Block& block, TimePoint deadline) {
  while (block.left() > 0) {
    if (advance()) areas_->notify_all();
    else
      areas_->wait_for_any(
          block.peer(), [this] { return can_advance(); }, deadline);
  }
}

}  // namespace muster::comm
