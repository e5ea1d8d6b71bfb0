#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/sim/backend.h"

namespace muster::sim {

/// What one rank contributes to the operations of a channel, one after the other.
struct Slot {
  static constexpr size_t kText = 192;
  std::atomic<uint64_t> posted;    ///< number of operations whose input has been in the payload
  std::atomic<uint64_t> finished;  ///< number of operations in which this rank has read all payloads
  char what[kText];                ///< description of the operation, on which ranks must agree
};

/// Memory that the ranks of a group share. Ranks may be threads or processes.
class Segment {
 public:
  static constexpr size_t kPayload = size_t{1} << 28;  ///< bytes per slot; pages are allocated on first write

  /// Collective: every rank.
  Segment(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const BackendOptions& options);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Slots: one for each rank, then two for each pair of ranks.
  size_t slots() const { return ranks_ * (1 + 2 * ranks_); }
  size_t first_of_pair(int from, int to) const {
    return ranks_ + 2 * (static_cast<size_t>(from) * ranks_ + static_cast<size_t>(to));
  }
  Slot& slot(size_t index) const;
  char* payload(size_t index) const;

  /// This rank takes part in no further operation.
  void leave() { member(own_).left = true; }
  /// Calls leave(). If operations hang, those of this rank end.
  void abort() {
    aborted_ = true;
    leave();
  }
  bool hangs() const { return hangs_; }
  /// Whether this rank's hanging operations have ended.
  bool is_given_up() const { return hangs_ && aborted_; }
  /// Why this rank will post nothing more; empty: it may.
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
