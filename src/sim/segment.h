#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/sim/backend.h"

namespace muster::sim {

/// What one rank brings to the operations of a channel, one after the other.
struct Slot {
  static constexpr size_t kText = 192;
  std::atomic<uint64_t> posted;    ///< operations whose input lies in the payload
  std::atomic<uint64_t> finished;  ///< operations in which this rank has read all payloads
  char what[kText];                ///< in what ranks must agree
};

/// Memory that the ranks of a group share, threads or processes.
class Segment {
 public:
  static constexpr size_t kPayload = size_t{1} << 28;  ///< of a slot; pages come when they are written

  /// Collective: every rank.
  Segment(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const BackendOptions& options);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Slots: one of each rank, then two of each pair of ranks.
  size_t slots() const { return ranks_ * (1 + 2 * ranks_); }
  size_t first_of_pair(int from, int to) const {
    return ranks_ + 2 * (static_cast<size_t>(from) * ranks_ + static_cast<size_t>(to));
  }
  Slot& slot(size_t index) const;
  char* payload(size_t index) const;

  /// This rank takes part in no further operation.
  void leave() { member(own_).left = true; }
  /// The same; where operations hang, this rank's own end.
  void abort() {
    aborted_ = true;
    leave();
  }
  bool hangs() const { return hangs_; }
  /// Whether operations that hang have ended on this rank.
  bool is_given_up() const { return hangs_ && aborted_; }
  /// Empty, or why this rank will not post any more.
  std::string end_of(int rank) const;
  bool has_other_processes() const;

 private:
  struct Member {
    std::atomic<int64_t> process;
    std::atomic<bool> left;
  };
  Member& member(size_t rank) const { return reinterpret_cast<Member*>(begin_)[rank]; }
  size_t bytes() const;

  size_t ranks_, own_;
  bool hangs_;
  std::atomic<bool> aborted_ = false;
  char* begin_ = nullptr;
};

}  // namespace muster::sim
