#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::comm {

/// What a rank may do with the memory that another rank of its host allocated for all of them.
enum class PeerAccess : uint8_t {
  read,
  read_contiguous,  ///< read; the parts of all ranks appear one after another, in rank order
  write,            ///< write results of reductions; after a CommError the contents are undefined, and may still change
};

/// Memory of a group for tensors. It has one part per rank, which that rank allocated.
struct SharedBuffer {
  uint64_t number = 0;              ///< number of the buffer, equal on all ranks
  std::size_t bytes = 0;            ///< size of each part
  PeerAccess access{};              ///< how a rank may access the parts of others
  std::vector<std::byte*> parts{};  ///< address of each part, by rank
  std::byte* row = nullptr;         ///< PeerAccess::read_contiguous: address of all parts in a row, for reading only
  std::shared_ptr<void> keeps{};    ///< owner of the memory
};

/// The buffers of a group that tensors still use, from the point of view of one rank.
class LiveBuffers {
 public:
  explicit LiveBuffers(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  void add(const std::shared_ptr<SharedBuffer>& buffer);
  /// The buffer that contains all of the rank's tensor; null if there is none.
  std::shared_ptr<SharedBuffer> of(const at::Tensor& tensor) const;

 private:
  const std::size_t rank_;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;
};

}  // namespace muster::comm
