#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "comm/header.h"
#include "comm/pieces.h"
#include "comm/shared_memory/live_buffers.h"
#include "comm/shared_memory/shared_transport.h"

namespace muster::comm {

/// Collectives of ranks that share memory: each reduces its piece from all ranks' memory, in rank order.
/// As over any transport, every rank sends every other a frame with its header first; where the digests of two headers
/// are equal, that is all that is read of them. Small values are in the mailboxes beside the frames; larger ones pass
/// through two staging buffers per rank in chunks. What is sent to single ranks, and what has different shapes, is
/// exchanged as by Pairwise.
class SharedCollectives final : public Collectives {
 public:
  explicit SharedCollectives(std::shared_ptr<SharedAreas> areas);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  void run(Operation& operation, const std::string& group, TimePoint deadline) override;
  bool shares_memory() const noexcept override { return true; }
  std::size_t part_alignment() const noexcept override { return areas_->part_alignment(); }
  void abort(const std::string& cause) noexcept override { areas_->abort(cause); }
  void close() noexcept override { areas_->close(); }
  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_unique<SharedCollectives>(areas_->split(ranks, name));
  }

 private:
  struct Call {
    Operation& operation;
    const std::string& group;
    TimePoint deadline;
    bool headers_exchanged = false;  ///< the ranks have exchanged headers
  };
  using Payload = std::function<const void*(int peer)>;

  void all_reduce(Call& call);
  void all_gather(Call& call);
  void reduce_scatter(Call& call);
  void broadcast(const Call& call);
  void reduce(const Call& call);
  void all_reduce_inline(const Call& call);
  void reduce_scatter_inline(const Call& call);
  void allocate_buffer(const Call& call);

  /// Sends a frame with a header, and `sent` bytes beside it, to each rank; then each rank's are in boxes_, checked,
  /// with expected(rank) bytes.
  void exchange_frames(const Call& call, std::size_t sent, const Payload& data,
                       const std::function<std::size_t(int peer)>& expected);
  void exchange_headers(const Call& call);
  /// Whether to look how far the others are: rarely, since it costs as much as reading a few of their cache lines.
  bool should_measure_latency(const Call& call);
  const void* received(int peer) const { return boxes_[peer]->payload(); }

  /// A part of an operation that passes through staging at once.
  struct Chunk {
    int64_t begin, size;  ///< elements
    uint64_t number;      ///< counts all chunks of the group
  };
  /// For each chunk: `fill` writes to this rank's staging; then peers may read it, and `use` waits for theirs.
  void for_each_chunk(const Call& call, int64_t elements, int64_t at_once,
                      const std::function<void(const Chunk&)>& fill, const std::function<void(const Chunk&)>& use);
  /// Part of a chunk to this rank's staging, so that peers have it soon.
  void stage(std::byte* to, const void* from, int64_t bytes) const;
  void wait_filled(const Call& call, int peer, uint64_t chunks);
  void wait_reduced(const Call& call, int peer, uint64_t chunks);
  std::byte* staging(int rank, const Chunk& chunk) const { return areas_->staging(rank, chunk.number); }

  /// Reduces `tensor`: `everybody` gets the result, or the root alone. reduce_pieces(): each rank reduces one piece for
  /// all.
  void reduce_staged(const Call& call, const at::Tensor& tensor, bool everybody);
  void reduce_whole(const Call& call, const at::Tensor& tensor, bool everybody);
  void reduce_pieces(const Call& call, const at::Tensor& tensor, bool everybody);

  /// The buffer in which the tensor is on all ranks, at the same place unless it is gathered; null if it is not. Ranks
  /// whose tensor is in a buffer have headers_exchanged then.
  std::shared_ptr<SharedBuffer> buffer_of_all(Call& call, const at::Tensor& tensor);
  /// The same, for what peers only read; null, too, where they have it sooner through mailboxes or staging.
  std::shared_ptr<SharedBuffer> buffer_to_read(Call& call, const at::Tensor& tensor);
  void reduce_in(const SharedBuffer& buffer, const Call& call, Range elements);
  void all_reduce_in(const SharedBuffer& buffer, const Call& call);
  void all_gather_in(const SharedBuffer& buffer, const Call& call);
  void reduce_scatter_in(const SharedBuffer& buffer, const Call& call);
  /// Waits until all ranks are done with each other's memory: a caller may write to its tensor then.
  void end_reading(const Call& call);

  const std::shared_ptr<SharedAreas> areas_;
  SharedTransport* transport_;  // of pairwise_
  std::unique_ptr<Collectives> pairwise_;
  const int rank_;
  const int size_;
  uint64_t chunks_ = 0;
  uint64_t steps_ = 0;
  uint64_t last_buffer_number_ = 0;
  uint64_t large_ = 0;          ///< operations that do not fit a mailbox
  bool avoids_caches_ = false;  ///< what one rank writes another has sooner through memory than through the caches
  LiveBuffers buffers_;
  std::vector<const Mailbox*> boxes_;
  std::vector<const void*> terms_;
  std::vector<void*> results_;
};

}  // namespace muster::comm
