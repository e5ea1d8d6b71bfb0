#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "muster/parallel/detail/job_rounds.h"

namespace muster::parallel {

/// One model's entries in the JobRounds of its program; without one it does nothing.
/// Thread safety: the caller's.
class RoundRecord {
 public:
  void join(std::shared_ptr<JobRounds> job, int64_t place) {
    job_ = std::move(job);
    place_ = place;
  }
  /// The step of the job's optimizers; -1: unknown.
  int64_t step() const noexcept { return job_ ? job_->step() : -1; }
  /// Only the first counts until end().
  void begin() {
    if (job_ && !std::exchange(open_, true)) job_->began(place_);
  }
  void end() {
    if (std::exchange(open_, false)) job_->ended(place_);
  }

 private:
  std::shared_ptr<JobRounds> job_;
  int64_t place_ = -1;
  bool open_ = false;
};

}  // namespace muster::parallel
