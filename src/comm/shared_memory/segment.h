#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "comm/fork_check.h"
#include "comm/peer_access.h"
#include "comm/shared_memory/faults.h"

namespace muster::comm {

/// Memory that several processes map. It has no name, so nothing of it is left when the last of them has ended.
/// A forked child does not inherit the mapping, and core dumps leave it out.
class Segment {
 public:
  Segment() = default;
  /// A new one of this size, zeroed, the first `allocated` bytes with memory; it can neither shrink nor grow, nor be
  /// mapped for writing again unless peers may write. Throws: std::system_error if the system refuses.
  static Segment make(std::size_t bytes, std::size_t allocated, PeerAccess access = PeerAccess::read);
  static Segment make(std::size_t bytes, PeerAccess access = PeerAccess::read) { return make(bytes, bytes, access); }
  /// Gives a part memory, where it has none; it is zeroed. Without, writing there may end the process.
  /// Requires: the descriptor. Throws: std::system_error if the system refuses.
  void allocate(std::size_t begin, std::size_t bytes) const;
  /// Another process's. Throws: std::system_error; std::runtime_error if it is smaller or could shrink.
  static Segment map(const Descriptor& descriptor, std::size_t bytes, PeerAccess access = PeerAccess::read);
  /// Those of all ranks, this one's too, one after another, for reading only: a write there ends the process, with
  /// words. Throws: as map().
  /// Requires: `bytes`, of each, is a multiple of page_bytes().
  static Segment map_contiguous(const std::vector<Descriptor>& descriptors, std::size_t bytes);
  static std::size_t page_bytes() noexcept;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  /// To hand over; only a segment of make() has it.
  const Descriptor& descriptor() const noexcept { return descriptor_; }
  Descriptor take_descriptor() noexcept { return std::move(descriptor_); }

 private:
  void map_here(int descriptor, std::size_t bytes, int protection);

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  FaultNotice notice_;
  ForkCheck process_;
};

}  // namespace muster::comm
