#pragma once

#include <ATen/core/Tensor.h>

#include "comm/operation.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Largest number of dimensions; tensors with more are refused. The header of a subgroup operation lists at most this
/// many ranks.
inline constexpr int kMaxDims = 64;

/// Maximum length in bytes of a label that is sent to the peers.
inline constexpr int kMaxLabel = 63;

/// The beginning of each frame: the sender's operation, and the shape of what it sends.
struct Header {
  uint32_t magic = 0;
  OperationKind kind = OperationKind::barrier;
  uint8_t is_abort = 0;
  uint8_t sends_tensor = 0;  ///< 1 if a tensor is sent to this receiver; only in operations whose shapes may differ
  int8_t reduce = 0;
  int8_t dtype = 0;
  Source source = Source::user;
  int32_t root = -1;
  int32_t dims = 0;  ///< number of entries of `shape` that are used
  int32_t tensor_index = 0;
  int32_t tensor_count = 1;
  int64_t gradient_step = -1;
  int64_t history_hash = 0;
  int64_t sequence = 0;
  int64_t shape_hash = 0;           ///< hash of all dims, including those that do not fit into `shape`
  int64_t label_hash = 0;           ///< hash of the whole label; 0 if there is none
  char label[kMaxLabel + 1] = {};   ///< beginning of the label, zero-terminated
  uint64_t piggyback = 0;           ///< the sender's piggyback value; see piggyback.h
  SharedMemoryLocation location{};  ///< location of the sender's tensor
  uint64_t bytes = 0;               ///< size of the payload to this receiver, which is inside the frame if it fits
  int64_t shape[kMaxDims] = {};

  at::IntArrayRef sizes() const { return {shape, static_cast<std::size_t>(dims < kMaxDims ? dims : kMaxDims)}; }
  at::ScalarType scalar_type() const { return static_cast<at::ScalarType>(dtype); }
};

inline constexpr std::size_t kInlineBytes = kFrameBytes - sizeof(Header);

/// This rank's header. `sent` is the tensor that the receiver gets, if the operation allows different shapes.
Header make_header(const Operation& operation, const at::Tensor* sent, uint64_t bytes);
/// A digest of the fields that ranks compare. Headers with equal digests agree, except by chance. Never 0.
uint64_t digest_of(const Header& header);
/// The text that describe() gives for its operation.
std::string describe(const Header& header);
Header read_header(const Frame& frame);
void write_header(Frame& frame, const Header& header);
std::byte* payload(Frame& frame);
const std::byte* payload(const Frame& frame);

Frame abort_frame(int rank, const std::string& cause);
/// Whether the frame was made by abort_frame().
bool is_abort(const Frame& frame);

/// Throws: CommError (MU050), naming both sides, if the two ranks are not in the same operation;
/// TransportFailure if the frame says that its sender ended the group.
void check_headers(const Header& mine, int my_rank, const Frame& frame, int peer, const std::string& group);

/// Throws: CommError (MU050) if the peer sent a different number of bytes than this rank expects.
void check_bytes(const Header& theirs, std::size_t expected, int my_rank, int peer, const Operation& operation,
                 const std::string& group);

}  // namespace muster::comm
