#include "comm/shared_memory/shared_collectives.h"

#include <deque>

#include "comm/shared_memory/cores.h"
#include "comm/shared_memory/reduction.h"
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
  const Mailbox& box_from(int peer, TimePoint deadline) {
    uint64_t& received = peers_[peer].frames_received;
    const Mailbox& box = areas_->channel(peer, rank()).boxes[received % 2];
    areas_->wait(
        peer, [&] { return box.number.load(std::memory_order_acquire) > received; }, deadline);
    ++received;
    return box;
  }

  int rank() const noexcept override { return areas_->rank(); }
  int size() const noexcept override { return areas_->size(); }
  void send_frame(int to, const Frame& frame, TimePoint) override {
    Mailbox& box = box_to(to);
    box.frame = frame;
    box.digest = 0;
    send(to);
    areas_->notify_all();
  }
  void recv_frame(int from, Frame& frame, TimePoint deadline) override { frame = box_from(from, deadline).frame; }
  Request send(int to, const void* data, std::size_t bytes, int) override {
    return std::make_unique<Block>(*this, to, peers_[to].sends, data, bytes);
  }
  Request recv(int from, void* data, std::size_t bytes, int) override {
    return std::make_unique<Block>(*this, from, peers_[from].receives, data, bytes);
  }
  void abort(const std::string& cause) noexcept override { areas_->abort(cause); }
  void close() noexcept override { areas_->close(); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_unique<SharedTransport>(areas_->split(ranks, name));
  }

 private:
  /// A block while it is sent or received, in pieces.
  class Block final : public Transport::Transfer {
   public:
    Block(SharedTransport& transport, int peer, std::deque<Block*>& queue, const void* data, std::size_t bytes)
        : peer(peer), left(static_cast<std::byte*>(const_cast<void*>(data)), bytes), transport_(transport),
          queue_(queue) {
      queue_.push_back(this);
    }
    ~Block() override { std::erase(queue_, this); }
    void wait(TimePoint deadline) override {
      if (!left.empty()) transport_.wait(*this, deadline);
    }
    /// Takes the next piece, of at most `limit` bytes, from what is left.
    std::span<std::byte> take(std::size_t limit) {
      const auto piece = left.first(std::min(limit, left.size()));
      left = left.subspan(piece.size());
      return piece;
    }

    const int peer;
    std::span<std::byte> left;

   private:
    SharedTransport& transport_;
    std::deque<Block*>& queue_;
  };

  struct Peer {
    uint64_t frames_sent = 0, frames_received = 0;
    uint64_t pieces_sent = 0, pieces_received = 0;
    std::deque<Block*> sends, receives;
  };

  bool can_advance() const {
    for (int peer = 0; peer < size(); ++peer) {
      const Peer& own = peers_[peer];
      const Channel& theirs = areas_->channel(peer, rank());
      if (!own.sends.empty() && theirs.taken.load(std::memory_order_acquire) + 2 > own.pieces_sent) return true;
      if (!own.receives.empty() && theirs.filled.load(std::memory_order_acquire) > own.pieces_received) return true;
    }
    return false;
  }
  /// Copies what can be copied now. Returns whether there was anything.
  bool advance() {
    bool any = false;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      any |= advance_sends(peer);
      any |= advance_receives(peer);
    }
    return any;
  }
  bool advance_sends(int peer) {
    Peer& own = peers_[peer];
    const auto taken = areas_->channel(peer, rank()).taken.load(std::memory_order_acquire);
    const auto before = own.pieces_sent;
    while (!own.sends.empty() && own.pieces_sent < taken + 2) {
      Block& block = *own.sends.front();
      areas_->ensure_blocks();
      const auto piece = block.take(areas_->layout().block_bytes);
      std::memcpy(areas_->blocks(rank(), peer, own.pieces_sent++), piece.data(), piece.size());
      if (block.left.empty()) own.sends.pop_front();
    }
    if (own.pieces_sent == before) return false;
    areas_->channel(rank(), peer).filled.store(own.pieces_sent, std::memory_order_release);
    return true;
  }
  bool advance_receives(int peer) {
    Peer& own = peers_[peer];
    const auto filled = areas_->channel(peer, rank()).filled.load(std::memory_order_acquire);
    const auto before = own.pieces_received;
    while (!own.receives.empty() && own.pieces_received < filled) {
      Block& block = *own.receives.front();
      const auto piece = block.take(areas_->layout().block_bytes);
      std::memcpy(piece.data(), areas_->blocks(peer, rank(), own.pieces_received++), piece.size());
      if (block.left.empty()) own.receives.pop_front();
    }
    if (own.pieces_received == before) return false;
    areas_->channel(rank(), peer).taken.store(own.pieces_received, std::memory_order_release);
    return true;
  }
  void wait(const Block& block, TimePoint deadline) {
    while (!block.left.empty()) {
      if (advance()) areas_->notify_all();
      else
        areas_->wait_for_any(
            block.peer, [this] { return can_advance(); }, deadline);
    }
  }

  const std::shared_ptr<SharedAreas> areas_;
  std::vector<Peer> peers_;
};

namespace {

constexpr auto kStaging = static_cast<int64_t>(AreaLayout::kStagingBytes);
/// Bytes of a chunk that is only copied. Chunks of a reduction are larger, because a reduction waits twice per chunk.
constexpr int64_t kCopied = kStaging / 2;
/// Bytes that a rank reads from the others, at most, to reduce a whole tensor itself instead of waiting for their
/// pieces: docs/decisions/0111-one-line-of-a-small-message.md.
constexpr auto kWholeBytes = std::size_t{64} << 10;

}  // namespace

SharedCollectives::SharedCollectives(std::shared_ptr<SharedAreas> areas)
    : areas_(std::move(areas)), rank_(areas_->rank()), size_(areas_->size()), buffers_(rank_),
      boxes_(static_cast<std::size_t>(size_)), terms_(static_cast<std::size_t>(size_)),
      results_(static_cast<std::size_t>(size_)) {
  auto transport = std::make_unique<SharedTransport>(areas_);
  transport_ = transport.get();
  pairwise_ = make_pairwise(std::move(transport));
}

void SharedCollectives::run(Operation& operation, const std::string& group, TimePoint deadline) {
  Call call{operation, group, deadline};
  operation.piggybacks.assign(operation.piggyback ? size_ : 0, 0);
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce: return reduce(call);
    case OperationKind::all_gather: return all_gather(call);
    case OperationKind::reduce_scatter: return reduce_scatter(call);
    case OperationKind::broadcast: return broadcast(call);
    case OperationKind::barrier: return exchange_headers(call);
    case OperationKind::allocate_shared_buffer: return allocate_buffer(call);
    default: return pairwise_->run(operation, group, deadline);
  }
}

void SharedCollectives::exchange_headers(const Call& call) {
  exchange_frames(
      call, 0, [](int) { return nullptr; }, [](int) { return std::size_t{0}; });
}

void SharedCollectives::exchange_frames(const Call& call, std::size_t sent, const Payload& data,
                                        const std::function<std::size_t(int peer)>& expected) {
  const Header header = make_header(call.operation, nullptr, sent);
  const uint64_t digest = digest_of(header);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Mailbox& box = transport_->box_to(peer);
    write_header(box.frame, header);
    box.digest = digest;
    box.piggyback = header.piggyback;
    box.bytes = sent;
    if (sent > 0) std::memcpy(box.payload(), data(peer), sent);
    transport_->send(peer);
  }
  areas_->notify_all();
  const bool measures = should_measure_latency(call);
  double latency = 0;
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const Mailbox& box = transport_->box_from(peer, call.deadline);
    boxes_[peer] = &box;
    // Nothing of the frame itself was read before.
    if (measures) latency = std::max(latency, areas_->latency_of(box.frame));
    if (box.digest != digest) check_headers(header, rank_, box.frame, peer, call.group);
    if (box.bytes != expected(peer))
      check_bytes(read_header(box.frame), expected(peer), rank_, peer, call.operation, call.group);
    if (call.operation.piggyback) call.operation.piggybacks[peer] = box.piggyback;
  }
  if (measures) avoids_caches_ = latency > kNearNanoseconds;
}

bool SharedCollectives::should_measure_latency(const Call& call) {
  const at::Tensor& out = call.operation.out;
  return out.defined() && out.nbytes() > Mailbox::kMostBytes && large_++ % 8 == 0;
}

void SharedCollectives::collect_terms(const Call& call, const Chunk& chunk, const void* own, int64_t offset) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) wait_filled(call, peer, chunk.number + 1);
    terms_[peer] = peer == rank_ ? own : staging(peer, chunk) + offset;
  }
}

void SharedCollectives::for_each_chunk(const Call& call, int64_t elements, int64_t at_once,
                                       const std::function<void(const Chunk&)>& fill,
                                       const std::function<void(const Chunk&)>& use) {
  areas_->ensure_staging();
  const int64_t count = (elements + at_once - 1) / at_once;
  // The last chunk first: it was written last, so it is still in a cache if the whole tensor does not fit.
  for (int64_t left = count; left > 0; --left) {
    const int64_t begin = (left - 1) * at_once;
    const Chunk chunk{begin, std::min(at_once, elements - begin), chunks_};
    // A rank that has filled chunk k has read all chunks before it, and this staging held chunk k - 1.
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) wait_filled(call, peer, chunks_);
    fill(chunk);
    areas_->control(rank_).filled.store(++chunks_, std::memory_order_release);
    if (left == count && !call.headers_exchanged) exchange_headers(call);
    else areas_->notify_all();
    use(chunk);
  }
}

void SharedCollectives::reduce(Call& call) {
  const at::Tensor& out = call.operation.out;
  if (out.nbytes() <= Mailbox::kMostBytes) return reduce_inline(call);
  if (call.operation.kind == OperationKind::all_reduce)
    if (const auto buffer = buffer_of_all(call, out); buffer && buffer->access == PeerAccess::write)
      return all_reduce_in(*buffer, call);
  const bool is_small = out.nbytes() * static_cast<std::size_t>(size_ - 1) <= kWholeBytes;
  is_small ? reduce_whole(call) : reduce_pieces(call);
}

void SharedCollectives::reduce_inline(const Call& call) {
  const at::Tensor& out = call.operation.out;
  void* data = out.numel() ? out.mutable_data_ptr() : nullptr;
  const std::size_t bytes = out.nbytes();
  exchange_frames(
      call, bytes, [&](int) { return data; }, [&](int) { return bytes; });
  if (bytes == 0 || !takes_result(call)) return;
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = peer == rank_ ? data : received(peer);
  reduce_memory({&data, 1}, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(), call.operation.reduce);
}

void SharedCollectives::reduce_whole(const Call& call) {
  const at::Tensor& out = call.operation.out;
  const bool takes = takes_result(call);
  void* data = takes ? out.mutable_data_ptr() : const_cast<void*>(out.const_data_ptr());
  const auto fill = [&](const Chunk& chunk) { stage(staging(rank_, chunk), data, out.nbytes()); };
  const auto use = [&](const Chunk& chunk) {
    if (!takes) return;
    collect_terms(call, chunk, data, 0);
    reduce_memory({&data, 1}, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(), call.operation.reduce);
  };
  for_each_chunk(call, out.numel(), out.numel(), fill, use);
}

void SharedCollectives::reduce_pieces(const Call& call) {
  const at::Tensor& out = call.operation.out;
  const auto width = static_cast<int64_t>(out.element_size());
  const bool takes = takes_result(call);
  auto* data = static_cast<std::byte*>(takes ? out.mutable_data_ptr() : const_cast<void*>(out.const_data_ptr()));
  const auto fill = [&](const Chunk& chunk) {
    const Range own = aligned_piece_of(rank_, chunk.size, size_);
    const std::byte* from = data + chunk.begin * width;
    std::byte* to = staging(rank_, chunk);
    stage(to, from, own.begin * width);
    stage(to + own.end * width, from + own.end * width, (chunk.size - own.end) * width);
  };
  const auto use = [&](const Chunk& chunk) {
    const Range own = aligned_piece_of(rank_, chunk.size, size_);
    std::byte* here = data + chunk.begin * width;
    collect_terms(call, chunk, here + own.begin * width, own.begin * width);
    void* results[] = {staging(rank_, chunk) + own.begin * width, here + own.begin * width};
    if (takes && avoids_caches_) std::swap(results[0], results[1]);
    reduce_memory({results, takes ? 2u : 1u}, terms_, static_cast<std::size_t>(own.size()), out.scalar_type(),
                  call.operation.reduce, takes && avoids_caches_);
    areas_->control(rank_).reduced.store(chunk.number + 1, std::memory_order_release);
    areas_->notify_all();
    for (int step = 1; takes && step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const Range piece = aligned_piece_of(peer, chunk.size, size_);
      areas_->wait_for_count(peer, &Control::reduced, chunk.number + 1, call.deadline);
      std::memcpy(here + piece.begin * width, staging(peer, chunk) + piece.begin * width, piece.size() * width);
    }
  };
  for_each_chunk(call, out.numel(), kStaging / width, fill, use);
}

void SharedCollectives::all_gather(Call& call) {
  const at::Tensor& in = call.operation.in;
  const std::size_t bytes = in.nbytes();
  if (bytes == 0) return exchange_headers(call);
  if (const auto buffer = buffer_to_read(call, in)) return all_gather_in(*buffer, call);
  const auto* own = static_cast<const std::byte*>(in.const_data_ptr());
  auto* pieces = static_cast<std::byte*>(call.operation.out.mutable_data_ptr());
  const bool in_place = pieces + bytes * rank_ == own;
  if (bytes <= Mailbox::kMostBytes) {
    exchange_frames(
        call, bytes, [&](int) { return own; }, [&](int) { return bytes; });
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ || !in_place) std::memcpy(pieces + bytes * peer, peer == rank_ ? own : received(peer), bytes);
    return;
  }
  const bool is_large = bytes * static_cast<std::size_t>(size_) > kCacheBytes;
  const auto fill = [&](const Chunk& chunk) { stage(staging(rank_, chunk), own + chunk.begin, chunk.size); };
  const auto use = [&](const Chunk& chunk) {
    for (int step = in_place ? 1 : 0; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      if (peer != rank_) wait_filled(call, peer, chunk.number + 1);
      const std::byte* from = peer == rank_ ? own + chunk.begin : staging(peer, chunk);
      copy_memory(pieces + bytes * peer + chunk.begin, from, static_cast<std::size_t>(chunk.size), is_large);
    }
  };
  for_each_chunk(call, static_cast<int64_t>(bytes), kCopied, fill, use);
}

void SharedCollectives::reduce_scatter_inline(const Call& call) {
  const at::Tensor& out = call.operation.out;
  const std::size_t bytes = out.nbytes();
  if (bytes == 0) return exchange_headers(call);
  const auto* in = static_cast<const std::byte*>(call.operation.in.const_data_ptr());
  exchange_frames(
      call, bytes, [&](int peer) { return in + bytes * peer; }, [&](int) { return bytes; });
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = peer == rank_ ? in + bytes * peer : received(peer);
  void* const result = out.mutable_data_ptr();
  reduce_memory({&result, 1}, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(), call.operation.reduce);
}

void SharedCollectives::reduce_scatter(Call& call) {
  const at::Tensor& out = call.operation.out;
  if (out.nbytes() <= Mailbox::kMostBytes) return reduce_scatter_inline(call);
  const at::Tensor& in = call.operation.in;
  if (const auto buffer = buffer_to_read(call, in)) return reduce_scatter_in(*buffer, call);
  const auto width = static_cast<int64_t>(out.element_size());
  const int64_t at_once = std::max<int64_t>(kStaging / size_ / width / kPieceAlign * kPieceAlign, 1),
                stride = at_once * width;
  const auto bytes = static_cast<int64_t>(out.nbytes());
  const auto* from = static_cast<const std::byte*>(in.const_data_ptr());
  auto* result = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto fill = [&](const Chunk& chunk) {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_)
        stage(staging(rank_, chunk) + stride * peer, from + bytes * peer + chunk.begin * width, chunk.size * width);
  };
  const auto use = [&](const Chunk& chunk) {
    collect_terms(call, chunk, from + bytes * rank_ + chunk.begin * width, stride * rank_);
    void* const here = result + chunk.begin * width;
    reduce_memory({&here, 1}, terms_, static_cast<std::size_t>(chunk.size), out.scalar_type(), call.operation.reduce);
  };
  for_each_chunk(call, out.numel(), at_once, fill, use);
}

void SharedCollectives::broadcast(const Call& call) {
  const at::Tensor& out = call.operation.out;
  const int root = call.operation.root;
  const std::size_t bytes = out.nbytes();
  if (bytes == 0) return exchange_headers(call);
  auto* data = static_cast<std::byte*>(out.mutable_data_ptr());
  if (bytes <= Mailbox::kMostBytes) {
    exchange_frames(
        call, rank_ == root ? bytes : 0, [&](int) { return data; }, [&](int peer) { return peer == root ? bytes : 0; });
    if (rank_ != root) std::memcpy(data, received(root), bytes);
    return;
  }
  const auto fill = [&](const Chunk& chunk) {
    if (rank_ == root) stage(staging(rank_, chunk), data + chunk.begin, chunk.size);
  };
  const auto use = [&](const Chunk& chunk) {
    if (rank_ == root) return;
    wait_filled(call, root, chunk.number + 1);
    std::memcpy(data + chunk.begin, staging(root, chunk), chunk.size);
  };
  for_each_chunk(call, static_cast<int64_t>(bytes), kCopied, fill, use);
}

// Operations on tensors in memory that all ranks can access: nothing is copied before it is reduced, and if ranks may
// write to each other's memory, nothing is copied afterwards either.
// Why: docs/decisions/0110-gradients-in-memory-that-ranks-share.md and 0116-results-that-peers-write.md.

/// Bytes of each rank that are reduced at once. Several such parts fit into a core's second-level cache.
constexpr int64_t kPartBytes = 128 << 10;

void SharedCollectives::allocate_buffer(const Call& call) {
  exchange_headers(call);
  auto buffer = areas_->allocate_buffer(static_cast<std::size_t>(call.operation.list.at(0)), call.operation.peer_access,
                                        ++last_buffer_number_, call.deadline);
  const auto has = static_cast<std::byte>(buffer != nullptr);
  exchange_frames(
      call, 1, [&](int) { return &has; }, [](int) { return std::size_t{1}; });
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && *static_cast<const std::byte*>(received(peer)) == std::byte{0}) return;
  if (!buffer) return;
  buffers_.add(buffer);
  call.operation.shared_buffer = std::move(buffer);
}

std::shared_ptr<SharedBuffer> SharedCollectives::buffer_of_all(Call& call, const at::Tensor& tensor) {
  auto buffer = buffers_.of(tensor);
  if (!buffer) return nullptr;
  SharedMemoryLocation& own = call.operation.location;
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  own = {buffer->number, static_cast<uint64_t>(begin - buffer->parts[rank_])};
  exchange_headers(call);
  call.headers_exchanged = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const SharedMemoryLocation theirs = read_header(boxes_[peer]->frame).location;
    if (theirs.buffer != own.buffer || theirs.offset > buffer->bytes - tensor.nbytes()) return nullptr;
    if (theirs.offset != own.offset && call.operation.kind != OperationKind::all_gather) return nullptr;
  }
  return buffer;
}

std::shared_ptr<SharedBuffer> SharedCollectives::buffer_to_read(Call& call, const at::Tensor& tensor) {
  // In bytes. Up to this size most of a tensor is still in the caches of the rank that wrote it, and far cores are
  // faster through staging: docs/decisions/0131-far-cores-exchange-through-memory.md.
  constexpr std::size_t kFarBytes = std::size_t{16} << 20;
  if (tensor.nbytes() <= Mailbox::kMostBytes || (avoids_caches_ && tensor.nbytes() <= kFarBytes)) return nullptr;
  return buffer_of_all(call, tensor);
}

void SharedCollectives::end_reading(const Call& call) {
  areas_->control(rank_).steps.store(++steps_, std::memory_order_release);
  areas_->notify_all();
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) areas_->wait_for_count(peer, &Control::steps, steps_, call.deadline);
}

void SharedCollectives::reduce_in(const SharedBuffer& buffer, const Call& call, Range elements) {
  const at::Tensor& out = call.operation.out;
  const auto width = static_cast<int64_t>(out.element_size());
  const int64_t at_once = kPartBytes / width;
  for (int64_t begin = elements.begin; begin < elements.end; begin += at_once) {
    // Checked per part: a rank that was stopped while the others gave up may write to their memory for one more part
    // only.
    areas_->check_alive();
    for (int peer = 0; peer < size_; ++peer)
      terms_[peer] = buffer.parts[peer] + call.operation.location.offset + begin * width;
    for (int step = 0; step < size_; ++step) results_[step] = const_cast<void*>(terms_[(rank_ + step) % size_]);
    reduce_memory(results_, terms_, static_cast<std::size_t>(std::min(at_once, elements.end - begin)),
                  out.scalar_type(), call.operation.reduce);
  }
}

void SharedCollectives::all_reduce_in(const SharedBuffer& buffer, const Call& call) {
  // Bytes of each rank in a block of a tensor that does not fit the caches. A core prefetches in long contiguous
  // ranges.
  constexpr int64_t kLongPartBytes = 4 << 20;
  const at::Tensor& out = call.operation.out;
  const bool fits_caches = out.nbytes() * static_cast<std::size_t>(size_) <= kCacheBytes;
  const int64_t part = (fits_caches ? kPartBytes : kLongPartBytes) / static_cast<int64_t>(out.element_size());
  const int64_t block = part * size_, blocks = (out.numel() + block - 1) / block;
  // The last block was written last, so it is still in a cache. Far cores gain from that only if all tensors fit the
  // caches; otherwise they start with the first block.
  const bool last_first = fits_caches || !avoids_caches_;
  for (int64_t number = 0; number < blocks; ++number) {
    const int64_t begin = (last_first ? blocks - 1 - number : number) * block;
    const Range own = aligned_piece_of(rank_, std::min(block, out.numel() - begin), size_);
    reduce_in(buffer, call, {begin + own.begin, begin + own.end});
  }
  end_reading(call);
}

void SharedCollectives::all_gather_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& in = call.operation.in;
  const std::size_t bytes = in.nbytes();
  auto* pieces = static_cast<std::byte*>(call.operation.out.mutable_data_ptr());
  const bool fits_caches = bytes * static_cast<std::size_t>(size_) <= kCacheBytes;
  const auto copy = fits_caches ? copy_in_caches : avoids_caches_ ? copy_string : copy_past_caches;
  for (int peer = 0; peer < size_; ++peer) {
    const void* from =
        peer == rank_ ? in.const_data_ptr() : buffer.parts[peer] + read_header(boxes_[peer]->frame).location.offset;
    std::byte* to = pieces + bytes * peer;
    if (to != from) copy(to, from, bytes);
  }
  end_reading(call);
}

void SharedCollectives::reduce_scatter_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& out = call.operation.out;
  const std::size_t begin = call.operation.location.offset + out.nbytes() * rank_;
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = buffer.parts[peer] + begin;
  void* const result = out.mutable_data_ptr();
  reduce_memory({&result, 1}, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(), call.operation.reduce);
  end_reading(call);
}

}  // namespace muster::comm
