#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/sim/backend.h"
#include "sim/machine.h"

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

/// Makes the result of a rank from what all ranks posted.
using Combine = std::function<void(const std::vector<at::Tensor>& parts, const at::Tensor& out)>;

/// Operations of a fixed set of ranks, one after the other, on one stream. Commands keep the channel alive.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  /// `ranks` are the ranks of its slots, which begin at `first`.
  Channel(std::shared_ptr<Segment> segment, size_t first, std::vector<int> ranks, size_t own, c10::Stream stream)
      : segment_(std::move(segment)), first_(first), ranks_(std::move(ranks)), own_(own), stream_(stream) {}

  c10::Stream stream() const { return stream_; }
  /// Queues two commands: one posts `in`, the next one computes `out` as soon as all ranks have posted.
  void enqueue(const std::string& name, const std::string& what, const at::Tensor& in, const at::Tensor& out,
               Combine combine);
  /// Queues that this rank takes part in no further operation.
  void enqueue_leave();

 private:
  bool all_finished(uint64_t count) const;
  bool all_posted(uint64_t count) const;
  /// Which rank will never post the operation, and why; empty: none.
  std::string missing(uint64_t count) const;
  bool can_finish(uint64_t count) const;
  /// Whether the operation can never finish, so that nobody should wait for it.
  bool is_over(uint64_t count);
  void post(uint64_t count, const std::string& what, const at::Tensor& in);
  void finish(uint64_t count, const std::string& name, const at::Tensor& in, const at::Tensor& out,
              const Combine& combine);
  /// How two ranks differ; empty: they agree.
  std::string disagreement() const;
  Slot& slot(size_t i) const { return segment_->slot(first_ + i); }

  std::shared_ptr<Segment> segment_;
  size_t first_;
  std::vector<int> ranks_;
  size_t own_;
  c10::Stream stream_;
  uint64_t enqueued_ = 0;
  unsigned asked_ = 0;
};

}  // namespace muster::sim
