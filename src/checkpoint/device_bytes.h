#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "device/order.h"

namespace muster::checkpoint {

/// Converts pairs of 4-bit elements, for which LibTorch has few operators, to bytes; other tensors are returned
/// unchanged.
at::Tensor as_bytes_if_packed(const at::Tensor& tensor);

/// The tensor's values, contiguous in CPU memory; the tensor itself if it already is. Pairs of 4-bit elements become
/// bytes.
at::Tensor dense(const at::Tensor& tensor);

/// A range of bytes in CPU memory and its destination.
struct ByteCopy {
  char* to;
  const char* from;
  std::size_t bytes;
};

/// Copies all ranges in large pieces, on LibTorch's intra-op threads.
/// Requires: no two ranges write the same byte.
void copy_bytes(const std::vector<ByteCopy>& copies);

/// Whether the tensor's values are in CPU memory in the order of its elements, without gaps, and its operators are not
/// intercepted. Those of a sharded model's parameters are: only operators, which wait or refuse, may read and write
/// them.
bool is_plain(const at::Tensor& tensor);

// Transfers of tensor bytes between a device and the host through pinned memory.
// Why: docs/decisions/0145-checkpoints-through-pinned-memory.md.

/// Whether the tensor is on a device whose bytes are transferred through pinned memory.
bool is_on_device(const at::Tensor& tensor);

/// The tensor's values as bytes, contiguous on its device; shares its memory if it is contiguous. Pairs of 4-bit
/// elements count as bytes. Requires: the tensor has elements.
at::Tensor bytes_of(const at::Tensor& tensor);

/// A part of bytes, which share their memory.
at::Tensor part_of(const at::Tensor& bytes, std::size_t offset, std::size_t count);

/// Sizes of the pieces of pinned memory for `bytes` bytes: powers of two, since LibTorch's pinned allocators round up
/// to them. Their sum is at most 1.05 times `bytes`, or a page more.
std::vector<std::size_t> pinned_pieces(std::size_t bytes);
/// Pinned memory of these sizes. Throws: CheckpointError (MU565) if there is not enough.
std::vector<at::Tensor> allocate_pinned(const std::vector<std::size_t>& pieces);

inline constexpr std::size_t kRingBytesEach = std::size_t{8} << 20;
inline constexpr std::size_t kRingPieces = 4;

/// Copies bytes to the host in order, through a few pieces of pinned memory: while one piece is used, the next are
/// copied, on a separate stream. Thread safety: one thread at a time.
class PinnedRing {
 public:
  using Use = std::function<void(std::string_view)>;
  /// `use` gets all bytes in order, and must not keep them.
  PinnedRing(at::Device device, Use use);
  /// If not all bytes were used, makes the device's current stream wait for the copies, so that tensors may be changed.
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// Appends the tensor in its state on the current stream. Throws: exceptions of `use`, as do all functions.
  void append(const at::Tensor& tensor);
  void append(std::string_view bytes);
  /// Returns when all appended bytes have been used.
  void finish();

 private:
  struct Piece {
    at::Tensor memory;
    std::size_t filled = 0;
    std::vector<at::Tensor> sources = {};  // sources of copies that are not known to be done
    device::Event done = {};
  };

  /// Space in the open piece for some of `wanted` bytes.
  at::Tensor room(std::size_t wanted);
  void close_piece();
  void use_oldest();

  at::Device device_;
  device::Stream stream_;
  Use use_;
  std::deque<Piece> closed_;
  std::vector<at::Tensor> free_;
  Piece open_;
  std::size_t made_ = 0;
};

/// Passes the bytes of tensors to `append` in order; those of tensors on a device come through a PinnedRing. They stay
/// valid until `flush` is called: when a few megabytes wait, and at the end. Only until then copies of tensors are
/// kept.
void append_tensors(std::size_t count, const std::function<at::Tensor(std::size_t)>& tensor_at,
                    const PinnedRing::Use& append, const std::function<void()>& flush);

/// Fills tensors on a device with bytes that are produced on the host in order: while one piece of pinned memory is
/// filled, earlier ones are copied, on the current stream. Thread safety: one thread at a time.
class DeviceFiller {
 public:
  /// Called for the pieces of a tensor in order: writes `bytes` bytes from `offset` on. Every piece except the last is
  /// a multiple of 16 bytes.
  using Fill = std::function<void(char* to, std::size_t offset, std::size_t bytes)>;

  void operator()(const at::Tensor& tensor, const Fill& fill);

 private:
  struct Piece {
    at::Tensor memory;
    device::Event done;
  };
  std::array<Piece, kRingPieces> pieces_;
  std::size_t next_ = 0;
};

}  // namespace muster::checkpoint
