#pragma once

#include <ATen/core/Tensor.h>

#include "comm/collectives.h"
#include "comm/header.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// target = the reduction of the terms, in their order; all are contiguous, of equal shape and dtype. float16 and
/// bfloat16 are summed in float32 and rounded once. A sum of bools is a logical or, a product a logical and. Sums and
/// products come from LibTorch's kernels, except in reduce_memory(); tests compare its bits with theirs. `own` is the
/// term that may be the target itself; the other terms are scratch memory and are overwritten.
void reduce_terms(const at::Tensor& target, const std::vector<at::Tensor>& terms, int own, ReduceOp op);

/// A 1-D tensor of this many elements of the dtype of `like`, in CPU memory at `data`. Borrows the memory.
at::Tensor elements_at(const void* data, int64_t elements, const at::Tensor& like);

/// Runs collectives as direct exchanges between all pairs of ranks. In every operation each rank sends every other one
/// a frame with its header, so that each rank detects a mismatch by itself, whichever ranks it concerns. Payloads of a
/// few kilobytes are sent in the frame.
/// Why: docs/decisions/0021-collectives-check-before-they-count.md.
class Pairwise : public Collectives {
 public:
  explicit Pairwise(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)), locations_(static_cast<std::size_t>(transport_->size())) {}

  int rank() const noexcept override { return transport_->rank(); }
  int size() const noexcept override { return transport_->size(); }
  void run(Operation& operation, const std::string& group, TimePoint deadline) override;
  void abort(const std::string& cause) noexcept override { transport_->abort(cause); }
  void close() noexcept override { transport_->close(); }
  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    return make_pairwise(transport_->split(ranks, name));
  }

 protected:
  /// Up to this size in bytes all_reduce, reduce and broadcast send full tensors: one round instead of two.
  static constexpr std::size_t kWholeBytes = std::size_t{64} * 1024;

  /// The state of one operation during the calls of this class.
  struct Call {
    Operation& operation;
    const std::string& group;
    TimePoint deadline;
  };

  virtual void dispatch(const Call& call);
  /// Exchanges frames without payload between all ranks. Throws: CommError (MU050), TransportFailure.
  void exchange_headers(const Call& call) { exchange(call, headers_alone()); }
  /// Calls exchange_headers() with one value per rank; returns whether all values are true.
  bool all_agree(const Call& call, bool own);
  /// The location of the peer's tensor according to the last header from it.
  SharedMemoryLocation location_of(int peer) const { return locations_[static_cast<std::size_t>(peer)]; }
  Transport& transport() const noexcept { return *transport_; }
  /// Scratch memory for the current operation.
  std::byte* scratch(std::size_t bytes);

 private:
  /// What one rank sends to and receives from one peer in an exchange.
  struct SendRecv {
    int peer = 0;
    const void* data = nullptr;  ///< payload for the peer
    std::size_t bytes = 0;
    const at::Tensor* sent = nullptr;         ///< the tensor to which `data` belongs, if shapes may differ
    void* into = nullptr;                     ///< destination of the peer's payload
    std::optional<std::size_t> expected = 0;  ///< size of the peer's payload in bytes; nullopt: the header states it
  };
  using Allocate = std::function<void*(int peer, const Header& header)>;
  using Requests = std::vector<Transport::Request>;

  /// Throws: the cause that the peer sent before its connection closed, if it sent one; otherwise nothing.
  void throw_abort_cause(const Call& call, int peer);
  /// The peers in the order in which this rank addresses them, starting with the next rank.
  std::vector<int> peers() const;
  /// Frames without payload to and from all peers.
  std::vector<SendRecv> headers_alone() const;
  /// Sends the tensor. With `into`, a tensor of its size arrives there.
  static SendRecv whole(int peer, const at::Tensor& tensor, void* into = nullptr) {
    return {.peer = peer,
            .data = tensor.const_data_ptr(),
            .bytes = tensor.nbytes(),
            .into = into,
            .expected = into ? tensor.nbytes() : 0};
  }
  /// Receives a tensor of this size.
  static SendRecv arrival(int peer, const at::Tensor& tensor, void* into) {
    return {.peer = peer, .into = into, .expected = tensor.nbytes()};
  }

  void exchange(const Call& call, const std::vector<SendRecv>& pairs, const Allocate& allocate = nullptr);
  void send_frames(const Call& call, const std::vector<SendRecv>& pairs);
  void post_blocks(Requests& requests, int peer, void* data, std::size_t bytes, bool sending);
  Frame recv_frame(const Call& call, int peer, const at::Tensor* sent);
  /// Throws: CommError (MU050) if what the header announces is not what is expected from that peer.
  void check_arrival(const Call& call, const SendRecv& pair, const Header& header) const;

  void all_reduce(const Call& call);
  void all_gather(const Call& call);
  void reduce_scatter(const Call& call);
  void broadcast(const Call& call);
  void reduce(const Call& call);
  void scatter(const Call& call);
  void point_to_point(const Call& call);
  /// Runs the operations in which shapes may differ, and those without any tensor.
  void exchange_uneven(const Call& call);

  class PieceBroadcast;
  class PieceReduction;
  /// Which ranks get the sum of a piece. owner: the rank that computes the piece, and its target holds only that piece;
  /// root, all: these ranks get every piece in a full-size target.
  enum class Receivers { owner, root, all };

  std::unique_ptr<Transport> transport_;
  std::vector<SharedMemoryLocation> locations_;
  at::Tensor scratch_;
};

}  // namespace muster::comm
