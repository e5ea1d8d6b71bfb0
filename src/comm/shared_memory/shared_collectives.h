#pragma once

#include "comm/collectives.h"
#include "comm/header.h"
#include "comm/pieces.h"
#include "comm/shared_memory/areas.h"
#include "comm/shared_tensor.h"

namespace muster::comm {

class SharedTransport;

/// Collectives of ranks that share memory: each rank reduces its piece from all ranks' memory, in rank order. As with
/// any transport, every rank first sends every other rank a frame with its header; if the digests of two headers are
/// equal, nothing else of them is read. Small payloads are in the mailboxes next to the frames; larger ones pass
/// through two staging buffers per rank in chunks. Data for single ranks and tensors of different shapes are exchanged
/// as in Pairwise.
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
    bool headers_exchanged = false;  ///< whether the ranks have already exchanged headers
  };
  using Payload = std::function<const void*(int peer)>;

  void reduce(Call& call);
  void all_gather(Call& call);
  void reduce_scatter(Call& call);
  void broadcast(const Call& call);
  void reduce_inline(const Call& call);
  void reduce_scatter_inline(const Call& call);
  void allocate_buffer(const Call& call);

  /// Sends each rank a frame with a header, and `sent` bytes next to it. Afterwards boxes_ has the frame of each rank,
  /// checked, with expected(rank) bytes.
  void exchange_frames(const Call& call, std::size_t sent, const Payload& data,
                       const std::function<std::size_t(int peer)>& expected);
  void exchange_headers(const Call& call);
  /// Whether to measure how far away the other cores are. Seldom true, because it costs as much as reading a few of
  /// their cache lines.
  bool should_measure_latency(const Call& call);
  const void* received(int peer) const { return boxes_[peer]->payload(); }

  /// A part of an operation that passes through staging in one go.
  struct Chunk {
    int64_t begin, size;  ///< range in elements
    uint64_t number;      ///< number counting all chunks of the group
  };
  /// For each chunk: `fill` writes to this rank's staging; then peers may read it, and `use` waits for their staging.
  void for_each_chunk(const Call& call, int64_t elements, int64_t at_once,
                      const std::function<void(const Chunk&)>& fill, const std::function<void(const Chunk&)>& use);
  /// Copies part of a chunk to this rank's staging in the way that lets peers read it soonest.
  void stage(std::byte* to, const void* from, int64_t bytes) const {
    copy_memory(to, from, static_cast<std::size_t>(bytes), avoids_caches_);
  }
  void wait_filled(const Call& call, int peer, uint64_t chunks) {
    areas_->wait_for_count(peer, &Control::filled, chunks, call.deadline);
  }
  /// Waits until all ranks have filled their staging. Sets terms_ to what is there at that offset in bytes; to `own`
  /// for this rank.
  void collect_terms(const Call& call, const Chunk& chunk, const void* own, int64_t offset);
  std::byte* staging(int rank, const Chunk& chunk) const { return areas_->staging(rank, chunk.number); }

  /// Whether this rank gets the result of all_reduce() or reduce().
  bool takes_result(const Call& call) const {
    return call.operation.kind == OperationKind::all_reduce || rank_ == call.operation.root;
  }
  void reduce_whole(const Call& call);
  /// Each rank reduces one piece for all.
  void reduce_pieces(const Call& call);

  /// The buffer that contains the tensor of every rank, at one offset unless it is gathered; null if there is none. If
  /// this rank's tensor is in a buffer, headers_exchanged is set.
  std::shared_ptr<SharedBuffer> buffer_of_all(Call& call, const at::Tensor& tensor);
  /// buffer_of_all() for a tensor that peers only read; null, too, if mailboxes or staging are faster.
  std::shared_ptr<SharedBuffer> buffer_to_read(Call& call, const at::Tensor& tensor);
  void reduce_in(const SharedBuffer& buffer, const Call& call, Range elements);
  void all_reduce_in(const SharedBuffer& buffer, const Call& call);
  void all_gather_in(const SharedBuffer& buffer, const Call& call);
  void reduce_scatter_in(const SharedBuffer& buffer, const Call& call);
  /// Waits until all ranks have finished with each other's memory. Afterwards a caller may write to its tensor.
  void end_reading(const Call& call);

  const std::shared_ptr<SharedAreas> areas_;
  SharedTransport* transport_;  // owned by pairwise_
  std::unique_ptr<Collectives> pairwise_;
  const int rank_;
  const int size_;
  uint64_t chunks_ = 0;
  uint64_t steps_ = 0;
  uint64_t last_buffer_number_ = 0;
  uint64_t large_ = 0;          ///< number of operations that did not fit into a mailbox
  bool avoids_caches_ = false;  ///< whether ranks get each other's new data faster through memory than through caches
  LiveBuffers buffers_;
  std::vector<const Mailbox*> boxes_;
  std::vector<const void*> terms_;
  std::vector<void*> results_;
};

}  // namespace muster::comm
