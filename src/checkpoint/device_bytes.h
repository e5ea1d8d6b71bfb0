#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/order.h"

/// Bytes of tensors on a device, to the host and back, through pinned memory.
namespace muster::checkpoint {

/// Whether the tensor is on a device to and from which bytes go through pinned memory.
bool is_on_device(const at::Tensor& tensor);

/// The tensor's values as bytes, contiguous where it is; its own memory if it is contiguous. Pairs of 4-bit elements
/// count as bytes. Requires: it has elements.
at::Tensor bytes_of(const at::Tensor& tensor);

/// Lengths of pieces of memory for so many bytes: powers of two, since LibTorch's allocators of pinned memory round up
/// to them; all together they are at most 1.05 times as many, or a page more.
std::vector<std::size_t> pinned_pieces(std::size_t bytes);
/// Memory of these lengths. Throws: CheckpointError (MU565) if there is not so much.
std::vector<at::Tensor> allocate_pinned(const std::vector<std::size_t>& pieces);

inline constexpr std::size_t kRingBytesEach = std::size_t{8} << 20;
inline constexpr std::size_t kRingPieces = 4;

/// Brings bytes to the host one after another, through a few pieces of pinned memory: while one piece is used, the next
/// are copied, on a stream of their own. Thread safety: one thread at a time.
class PinnedRing {
 public:
  using Use = std::function<void(std::string_view)>;
  /// `use` is given all bytes in their order, which it must not keep.
  PinnedRing(at::Device device, Use use);
  /// If not all was used, the device's current stream waits for the copies, so that tensors may be changed.
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// The tensor as the current stream has it. Throws: what `use` throws, as do all functions.
  void append(const at::Tensor& tensor);
  void append(std::string_view bytes);
  /// All that was appended is used.
  void finish();

 private:
  struct Piece {
    at::Tensor memory;
    std::size_t filled = 0;
    std::vector<at::Tensor> sources = {};  // of copies that are not known to be done
    device::Event done = {};
  };

  /// Room in the open piece for some of `wanted` bytes.
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

/// Fills tensors on a device with bytes that come to the host one after another: while one piece of pinned memory is
/// filled, those before are copied, on the current stream. Thread safety: one thread at a time.
class DeviceFiller {
 public:
  /// Called for pieces of a tensor in their order: writes the bytes from `offset` on. A piece is a multiple of 16 bytes
  /// unless it is the last.
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
