#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "muster/parallel/detail/reduction_record.h"

namespace muster::parallel {

/// One model's entries in the ReductionRecord of its program; without one it does nothing.
/// Thread safety: the caller's.
class ReductionRecorder {
 public:
  void join(std::shared_ptr<ReductionRecord> job, int64_t index) {
    job_ = std::move(job);
    index_ = index;
  }
  /// The step of the job's optimizers; -1: unknown.
  int64_t step() const noexcept { return job_ ? job_->step() : -1; }
  /// Only the first counts until end().
  void begin() {
    if (job_ && !std::exchange(open_, true)) job_->began(index_);
  }
  void end() {
    if (std::exchange(open_, false)) job_->ended(index_);
  }
  unsigned send_votes() const { return job_ ? job_->send_votes() : 0; }
  void receive_votes(unsigned all) const {
    if (job_) job_->receive_votes(all);
  }

 private:
  std::shared_ptr<ReductionRecord> job_;
  int64_t index_ = -1;
  bool open_ = false;
};

}  // namespace muster::parallel
