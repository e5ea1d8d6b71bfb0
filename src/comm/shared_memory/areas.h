#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/header.h"
#include "comm/shared_memory/cores.h"
#include "comm/shared_tensor.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// A sleep of a rank packed in one number: the count of its sleeps so far, and the rank that it waits for.
struct Sleep {
  static constexpr int kAnybody = -1;

  static uint64_t pack(uint64_t number, int awaited) { return number << 16 | static_cast<uint16_t>(awaited + 1); }
  /// Whether `rank` has to wake the sleeper.
  static bool is_for(uint64_t packed, int rank) {
    const auto awaited = static_cast<uint16_t>(packed);
    return awaited == 0 || awaited == static_cast<uint16_t>(rank + 1);
  }
};

/// What a rank tells all others. Only this rank writes it; memory starts as zeros.
struct Control {
  static constexpr std::size_t kCauseBytes = 2048;

  alignas(64) std::atomic<uint64_t> filled;   ///< number of chunks that its staging has held so far
  alignas(64) std::atomic<uint64_t> reduced;  ///< chunk up to which its piece of the result is in staging
  alignas(64) std::atomic<uint64_t> steps;    ///< number of operations in shared buffers that it has finished
  alignas(64) std::atomic<uint64_t> parked;   ///< nonzero while it sleeps: a packed Sleep
  alignas(64) std::atomic<uint32_t> ended;    ///< 1 if it has ended the group and the cause can be read
  uint32_t cause_bytes;
  char cause[kCauseBytes];
  cpu_set_t cores;  ///< cores of the rank, written before others see this struct
};

/// A frame for one other rank, behind one cache line: if a message is small, the receiver reads only that line. The
/// payload of a collective is stored next to the frame, which is not read at all if the digests agree.
/// Why: docs/decisions/0111-one-line-of-a-small-message.md.
struct Mailbox {
  static constexpr std::size_t kSmallBytes = 32;
  static constexpr std::size_t kMostBytes = 4096;

  alignas(64) std::atomic<uint64_t> number;  ///< number of the frame in this mailbox, counted from 1
  uint64_t digest;                           ///< digest of the frame's header; 0: the sender provides only the frame
  uint64_t piggyback;
  uint64_t bytes;                ///< size of the payload
  std::byte small[kSmallBytes];  ///< the payload, if it fits here
  Frame frame;
  std::byte large[kMostBytes];  ///< the payload, if it does not fit into `small`

  std::byte* payload() { return bytes <= kSmallBytes ? small : large; }
  const std::byte* payload() const { return bytes <= kSmallBytes ? small : large; }
};

/// What a rank tells one other rank.
struct Channel {
  alignas(64) std::atomic<uint64_t> filled;  ///< number of pieces of blocks sent so far
  alignas(64) std::atomic<uint64_t> taken;   ///< number of pieces of the other rank's blocks received so far
  Mailbox boxes[2];                          ///< frame i is in boxes[i % 2]
};

/// Offsets in the area of a rank.
struct AreaLayout {
  static constexpr std::size_t kStagingBytes = 512 << 10;  // bytes of one of two; fits a core's second-level cache
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
  /// Bytes that have memory from the start. The rest gets memory when it is first used.
  /// Why: docs/decisions/0112-staging-when-it-is-used.md.
  std::size_t bytes_at_first() const { return channels_end(); }

  std::size_t ranks;
  std::size_t block_bytes;  ///< bytes of one piece of a block; each peer has room for two

 private:
  std::size_t channels_end() const { return (channel(static_cast<int>(ranks)) + 4095) / 4096 * 4096; }
};

/// The memory that the ranks of one group share, and how they wait for each other. A rank writes its own area and reads
/// those of the others.
/// Thread safety: one thread at a time, except abort().
/// Why: docs/decisions/0089-areas-that-one-rank-writes.md.
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

  /// Makes messages count these ranks from `first`, because they are the ranks of one host in a group of several.
  void set_first_global_rank(int first) noexcept { first_global_rank_ = first; }

  /// Gives staging memory; ensure_blocks() does so for blocks. Call it before this rank writes there. Throws: CommError
  /// (MU402).
  void ensure_staging() {
    if (!has_staging_) allocate(layout_.staging(0), layout_.bytes() - layout_.staging(0));
    has_staging_ = true;
  }
  void ensure_blocks() {
    if (!has_blocks_) allocate(layout_.blocks(0, 0), layout_.staging(0) - layout_.blocks(0, 0));
    has_blocks_ = true;
  }

  /// Throws if another rank has ended the group. Call it before this rank writes to memory of others. Throws:
  /// TransportFailure.
  void check_alive() const {
    if (const int who = aborting_rank(-1); who >= 0) throw cause_of(who);
  }
  /// Wakes peers that wait, which then check again. Call it after this rank has written to its area. Throws:
  /// TransportFailure.
  virtual void notify_all() = 0;
  /// Waits until ready(), which reads what `peer` writes, returns true. Throws: TransportFailure.
  void wait(int peer, const std::function<bool()>& ready, TimePoint deadline) {
    if (!is_scheduled() && ready()) return;
    wait_for(peer, peer, ready, deadline);
  }
  /// Waits until a counter of the peer has reached that count. Throws: TransportFailure.
  void wait_for_count(int peer, std::atomic<uint64_t> Control::*counter, uint64_t count, TimePoint deadline) {
    const auto& theirs = control(peer).*counter;
    wait(
        peer, [&] { return theirs.load(std::memory_order_acquire) >= count; }, deadline);
  }
  /// Waits until ready() returns true, where any peer may cause that. Fails if `peer` has ended, because then the wait
  /// would never end. Throws: TransportFailure.
  void wait_for_any(int peer, const std::function<bool()>& ready, TimePoint deadline) {
    if (!is_scheduled() && ready()) return;
    wait_for(peer, Sleep::kAnybody, ready, deadline);
  }

  /// Nanoseconds to read the header of a frame that has just arrived and is not in this core's cache yet: see
  /// read_latency().
  virtual double latency_of(const Frame& frame) { return read_latency(frame.bytes.data(), sizeof(Header)); }

  /// Allocates zeroed memory for tensors; null if this rank cannot have all parts of it. Collective, with equal
  /// arguments. Throws: TransportFailure.
  virtual std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, PeerAccess access, uint64_t number,
                                                        TimePoint deadline) = 0;
  /// The page size: the number of bytes of a part must be a multiple of it with PeerAccess::read_contiguous, which maps
  /// the parts of all ranks one after another.
  virtual std::size_t part_alignment() const noexcept = 0;
  /// See Transport for these functions.
  virtual void abort(const std::string& cause) noexcept = 0;
  virtual void close() noexcept = 0;
  virtual std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) = 0;

 protected:
  SharedAreas(int rank, int size) : layout_(size), rank_(rank), areas_(static_cast<std::size_t>(size)) {}
  void set_area(int rank, std::byte* data) { areas_[rank] = data; }

  /// Whether another rank may run first at every wait.
  virtual bool is_scheduled() const noexcept { return false; }
  /// `waker` is the rank whose writes can end the wait.
  virtual void wait_for(int peer, int waker, const std::function<bool()>& ready, TimePoint deadline) = 0;

  /// Gives a part of this rank's area memory. Throws: CommError (MU402).
  virtual void allocate(std::size_t /*begin*/, std::size_t /*bytes*/) {}

  int global_rank() const noexcept { return first_global_rank_ + rank_; }

  /// For abort(): writes the cause to where peers read it.
  void write_cause(const std::string& cause) noexcept {
    Control& own = control(rank_);
    if (own.ended.load(std::memory_order_relaxed)) return;
    own.cause_bytes = static_cast<uint32_t>(std::min(cause.size(), Control::kCauseBytes));
    std::memcpy(own.cause, cause.data(), own.cause_bytes);
    own.ended.store(1, std::memory_order_release);
  }
  /// A rank that has ended the group: `first` if it has, else any other; -1 if none has.
  int aborting_rank(int first) const noexcept {
    const auto has_ended = [this](int rank) {
      return rank != rank_ && control(rank).ended.load(std::memory_order_acquire) != 0;
    };
    if (first >= 0 && has_ended(first)) return first;
    for (int rank = 0; rank < size(); ++rank)
      if (has_ended(rank)) return rank;
    return -1;
  }
  TransportFailure cause_of(int peer) const {
    const Control& theirs = control(peer);
    return {TransportFailure::Kind::aborted, peer,
            std::string(theirs.cause, std::min<std::size_t>(theirs.cause_bytes, Control::kCauseBytes))};
  }

 private:
  const AreaLayout layout_;
  const int rank_;
  std::vector<std::byte*> areas_;
  int first_global_rank_ = 0;
  bool has_staging_ = false;
  bool has_blocks_ = false;
};

/// The areas of the ranks of this rank's host, or why they cannot share memory. Every rank gets one text.
struct SharedAttempt {
  std::unique_ptr<SharedAreas> areas;
  std::string reason;
  std::vector<int> hosts{};  ///< host numbers by rank, equal for ranks of one host
};

/// Tries to share memory between the ranks of each host of the job. All ranks agree on the result through the store.
/// Ranks on several hosts share memory only if `several_hosts` is set and their Hosts have no obstacle.
/// Collective. Throws: what the store throws.
SharedAttempt share_memory(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
                           std::chrono::milliseconds timeout, bool several_hosts);

}  // namespace muster::comm
