#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/header.h"
#include "comm/shared_memory/copying.h"
#include "comm/shared_memory/cores.h"
#include "comm/shared_memory/shared_buffer.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// A rank's sleep in one number: how many it has begun, and for whom it waits.
struct Sleep {
  static constexpr int kAnybody = -1;

  static uint64_t pack(uint64_t number, int awaited) { return number << 16 | static_cast<uint16_t>(awaited + 1); }
  /// Whether `rank` has to wake the sleeper.
  static bool is_for(uint64_t packed, int rank) {
    const auto awaited = static_cast<uint16_t>(packed);
    return awaited == 0 || awaited == static_cast<uint16_t>(rank + 1);
  }
};

/// What a rank says to all others. It alone writes it; memory begins as zeros.
struct Control {
  static constexpr std::size_t kCauseBytes = 2048;

  alignas(64) std::atomic<uint64_t> filled;   ///< chunks that its staging has held so far
  alignas(64) std::atomic<uint64_t> reduced;  ///< up to this chunk, its piece of the result is in its staging
  alignas(64) std::atomic<uint64_t> steps;    ///< operations in shared buffers that it has ended so far
  alignas(64) std::atomic<uint64_t> parked;   ///< nonzero while it sleeps: a Sleep
  alignas(64) std::atomic<uint32_t> ended;    ///< 1: it has ended the group, and the cause can be read
  uint32_t cause_bytes;
  char cause[kCauseBytes];
  CoreMask cores;  ///< written before others see this
};

/// A frame for one other rank, after a cache line: of a small message the receiver reads only that line. What a
/// collective gives stands beside the frame, of which nothing is read where the digests agree.
struct Mailbox {
  static constexpr std::size_t kSmallBytes = 32;
  static constexpr std::size_t kMostBytes = 4096;

  alignas(64) std::atomic<uint64_t> number;  ///< of the frame that is here, counted from 1
  uint64_t digest;                           ///< of the frame's header; 0: the sender gives only the frame
  uint64_t piggyback;
  uint64_t bytes;                ///< of the payload
  std::byte small[kSmallBytes];  ///< the payload, if it fits
  Frame frame;
  std::byte large[kMostBytes];  ///< else the payload

  std::byte* payload() { return bytes <= kSmallBytes ? small : large; }
  const std::byte* payload() const { return bytes <= kSmallBytes ? small : large; }
};

/// What a rank says to one other.
struct Channel {
  alignas(64) std::atomic<uint64_t> filled;  ///< pieces of blocks sent so far
  alignas(64) std::atomic<uint64_t> taken;   ///< pieces of the other's blocks received so far
  Mailbox boxes[2];                          ///< frame i is in the one i % 2
};

/// Where things are in the area of a rank.
struct AreaLayout {
  static constexpr std::size_t kStagingBytes = 512 << 10;  // one of two: small enough for a core's second-level cache
  static constexpr std::size_t kControlBytes = 4096;
  static_assert(sizeof(Control) <= kControlBytes);

  explicit AreaLayout(int size)
      : ranks(static_cast<std::size_t>(size)),
        block_bytes(std::clamp<std::size_t>((std::size_t{1} << 19) / ranks / 4096 * 4096, 4096, 64 << 10)) {}

  std::size_t channel(int peer) const { return kControlBytes + sizeof(Channel) * static_cast<std::size_t>(peer); }
  std::size_t blocks(int peer, uint64_t index) const {
    return channels_end() + block_bytes * (2 * static_cast<std::size_t>(peer) + index % 2);
  }
  std::size_t staging(uint64_t chunk) const {
    return channels_end() + block_bytes * 2 * ranks + kStagingBytes * (chunk % 2);
  }
  std::size_t bytes() const { return staging(1) + kStagingBytes; }
  /// What a rank has from the start. The rest gets memory when it is first used.
  std::size_t bytes_at_first() const { return channels_end(); }

  std::size_t ranks;
  std::size_t block_bytes;  ///< of one piece of a block; two wait for each peer

 private:
  std::size_t channels_end() const { return (channel(static_cast<int>(ranks)) + 4095) / 4096 * 4096; }
};

/// The memory that the ranks of one group share, and how they wait for each other. A rank writes its own area and reads
/// those of the others.
/// Thread safety: one thread at a time, except abort().
class SharedAreas {
 public:
  virtual ~SharedAreas() = default;
  SharedAreas(const SharedAreas&) = delete;
  SharedAreas& operator=(const SharedAreas&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(layout_.ranks); }
  const AreaLayout& layout() const noexcept { return layout_; }
  Control& control(int rank) const { return *reinterpret_cast<Control*>(areas_[rank]); }
  Channel& channel(int from, int to) const { return *reinterpret_cast<Channel*>(areas_[from] + layout_.channel(to)); }
  std::byte* blocks(int from, int to, uint64_t index) const { return areas_[from] + layout_.blocks(to, index); }
  std::byte* staging(int rank, uint64_t chunk) const { return areas_[rank] + layout_.staging(chunk); }

  /// Messages count these ranks from `first`: they are those of one host in a group of several.
  void set_first_global_rank(int first) noexcept { first_global_rank_ = first; }

  /// Before this rank writes to its staging, or to its blocks: they have memory then. Throws: CommError (MU402).
  void ensure_staging() {
    if (!has_staging_) allocate(layout_.staging(0), layout_.bytes() - layout_.staging(0));
    has_staging_ = true;
  }
  void ensure_blocks() {
    if (!has_blocks_) allocate(layout_.blocks(0, 0), layout_.staging(0) - layout_.blocks(0, 0));
    has_blocks_ = true;
  }

  /// Before this rank writes to memory of the others: that none of them has ended the group. Throws: TransportFailure.
  void check_alive() const {
    if (const int who = aborting_rank(-1); who >= 0) throw cause_of(who);
  }
  /// After this rank has written to its area: wakes peers that wait, which check again. Throws: TransportFailure.
  virtual void notify_all() = 0;
  /// Waits until ready() returns true, which reads what `peer` writes. Throws: TransportFailure.
  void wait(int peer, const std::function<bool()>& ready, TimePoint deadline) {
    if (!is_scheduled() && ready()) return;
    wait_for(peer, peer, ready, deadline);
  }
  /// The same where any peer may make ready() true. The wait fails if `peer` has ended, without which it never ends.
  void wait_for_any(int peer, const std::function<bool()>& ready, TimePoint deadline) {
    if (!is_scheduled() && ready()) return;
    wait_for(peer, Sleep::kAnybody, ready, deadline);
  }

  /// Nanoseconds to read the header of a frame that has just come and that is not in this core's cache yet: see
  /// read_latency().
  virtual double latency_of(const Frame& frame) { return read_latency(frame.bytes.data(), sizeof(Header)); }

  /// Collective, with equal arguments: zeroed memory for tensors; null if this rank cannot have all parts of it.
  /// Throws: TransportFailure.
  virtual std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                        TimePoint deadline) = 0;
  /// With PeerAccess::read_contiguous the ranks' parts of a buffer are mapped one after another: the bytes of a part
  /// are a multiple of this, a page.
  virtual std::size_t part_alignment() const noexcept = 0;
  /// As the functions of Transport.
  virtual void abort(const std::string& cause) noexcept = 0;
  virtual void close() noexcept = 0;
  virtual std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) = 0;

 protected:
  SharedAreas(int rank, int size) : layout_(size), rank_(rank), areas_(static_cast<std::size_t>(size)) {}
  void set_area(int rank, std::byte* data) { areas_[rank] = data; }

  /// Whether every wait is a point at which another rank may run first.
  virtual bool is_scheduled() const noexcept { return false; }
  /// `waker` is the rank whose writes end the wait.
  virtual void wait_for(int peer, int waker, const std::function<bool()>& ready, TimePoint deadline) = 0;

  /// A part of this rank's area. Throws: CommError (MU402).
  virtual void allocate(std::size_t /*begin*/, std::size_t /*bytes*/) {}

  int global_rank() const noexcept { return first_global_rank_ + rank_; }

  /// For abort(): writes the cause where peers read it.
  void write_cause(const std::string& cause) noexcept;
  /// A rank that has ended the group: `first` if it has, else any; -1 if none.
  int aborting_rank(int first) const noexcept;
  TransportFailure cause_of(int peer) const;

 private:
  const AreaLayout layout_;
  const int rank_;
  std::vector<std::byte*> areas_;
  int first_global_rank_ = 0;
  bool has_staging_ = false;
  bool has_blocks_ = false;
};

}  // namespace muster::comm
