#pragma once

#include "base/descriptor.h"
#include "comm/shared_tensor.h"

namespace muster::comm {

/// Memory that several processes map. It has no name, so nothing of it remains when the last of them has ended. A
/// forked child does not inherit the mapping, and core dumps leave it out.
class Segment {
 public:
  Segment() = default;
  /// A new, zeroed segment of this size whose first `allocated` bytes have memory. It can neither shrink nor grow, nor
  /// be mapped for writing again unless peers may write. Throws: std::system_error if the system refuses.
  static Segment make(std::size_t bytes, std::size_t allocated, PeerAccess access = PeerAccess::read);
  static Segment make(std::size_t bytes, PeerAccess access = PeerAccess::read) { return make(bytes, bytes, access); }
  /// Gives a part memory if it has none; that memory is zeroed. Writing to a part without memory may end the process.
  /// Requires: the descriptor. Throws: std::system_error if the system refuses.
  void allocate(std::size_t begin, std::size_t bytes) const;
  /// Maps a segment of another process. Throws: std::system_error; std::runtime_error if it is smaller or could shrink.
  static Segment map(const Descriptor& descriptor, std::size_t bytes, PeerAccess access = PeerAccess::read);
  /// Maps the segments of all ranks, including this one's, one after another, for reading only. A write there ends the
  /// process after a message. Throws: what map() throws. Requires: `bytes`, the size of each, is a multiple of
  /// page_bytes().
  static Segment map_contiguous(const std::vector<Descriptor>& descriptors, std::size_t bytes);
  static std::size_t page_bytes() noexcept;

  std::byte* data() const noexcept { return memory_.get(); }
  /// The descriptor to pass on; only a segment of make() has it.
  const Descriptor& descriptor() const noexcept { return descriptor_; }
  Descriptor take_descriptor() noexcept { return std::move(descriptor_); }

 private:
  Descriptor descriptor_;
  std::shared_ptr<std::byte> memory_;  ///< unmapped with this object
};

}  // namespace muster::comm
