#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sim/machine.h"
#include "sim/segment.h"

namespace muster::sim {

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
