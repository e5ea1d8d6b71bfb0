#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "comm/operation.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Tensors of more dimensions are refused; the header of a subgroup operation lists at most this many ranks.
inline constexpr int kMaxDims = 64;

/// The maximum length of a label that is sent to the peers.
inline constexpr int kMaxLabel = 63;

/// The beginning of each frame: the sender's operation, and the shape of what it sends.
struct Header {
  uint32_t magic = 0;
  OperationKind kind = OperationKind::barrier;
  uint8_t is_abort = 0;
  uint8_t sends_tensor = 0;  ///< 1 if this tensor is sent; only in operations whose shapes may differ
  int8_t reduce = 0;
  int8_t dtype = 0;
  Source source = Source::user;
  int32_t root = -1;
  int32_t dims = 0;  ///< how many entries of `shape` count
  int32_t tensor_index = 0;
  int32_t tensor_count = 1;
  int64_t gradient_step = -1;
  int64_t history_hash = 0;
  int64_t sequence = 0;
  int64_t shape_hash = 0;           ///< of all dims, including those that do not fit
  int64_t label_hash = 0;           ///< 0 if there is no label
  char label[kMaxLabel + 1] = {};   ///< its beginning, zero-terminated
  uint64_t piggyback = 0;           ///< the sender's piggyback value; see piggyback.h
  SharedMemoryLocation location{};  ///< of the sender's tensor
  uint64_t bytes = 0;               ///< payload from the sender to this receiver; inside the frame if it fits
  int64_t shape[kMaxDims] = {};

  at::IntArrayRef sizes() const { return {shape, static_cast<std::size_t>(dims < kMaxDims ? dims : kMaxDims)}; }
  at::ScalarType scalar_type() const { return static_cast<at::ScalarType>(dtype); }
};

inline constexpr std::size_t kInlineBytes = kFrameBytes - sizeof(Header);

/// This rank's header. `sent` is the tensor that the receiver gets, if the operation allows different shapes.
Header make_header(const Operation& operation, const at::Tensor* sent, uint64_t bytes);
/// A digest of what ranks compare: headers with equal digests agree, except by chance. Never 0.
uint64_t digest_of(const Header& header);
/// As describe() of its operation.
std::string describe(const Header& header);
Header read_header(const Frame& frame);
void write_header(Frame& frame, const Header& header);
std::byte* payload(Frame& frame);
const std::byte* payload(const Frame& frame);

Frame abort_frame(int rank, const std::string& cause);
/// Whether it was made by abort_frame().
bool is_abort(const Frame& frame);

/// Throws: CommError (MU050), naming both sides, if the two ranks are not in the same operation;
/// TransportFailure if the frame says that its sender ended the group.
void check_headers(const Header& mine, int my_rank, const Frame& frame, int peer, const std::string& group);

/// Throws: CommError (MU050) if the peer sent another number of bytes than this rank expects.
void check_bytes(const Header& theirs, std::size_t expected, int my_rank, int peer, const Operation& operation,
                 const std::string& group);

}  // namespace muster::comm
