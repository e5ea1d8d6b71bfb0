#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "parallel/reduction_record.h"

namespace muster::parallel {

/// Makes one model's entries in the ReductionRecord of its program. Does nothing without a record.
/// Thread safety: the caller's.
class ReductionRecorder {
 public:
  void register_with(std::shared_ptr<ReductionRecord> record, int64_t index) {
    record_ = std::move(record);
    index_ = index;
  }
  /// The step of the job's optimizers; -1: unknown.
  int64_t step() const noexcept { return record_ ? record_->step() : -1; }
  /// Records the beginning of a reduction. Further calls before end() do nothing.
  void begin() {
    if (record_ && !std::exchange(open_, true)) record_->began(index_);
  }
  void end() {
    if (std::exchange(open_, false)) record_->ended(index_);
  }
  unsigned send_bits() const { return record_ ? record_->send_bits() : 0; }
  void receive_bits(unsigned any) const {
    if (record_) record_->receive_bits(any);
  }

 private:
  std::shared_ptr<ReductionRecord> record_;
  int64_t index_ = -1;
  bool open_ = false;
};

}  // namespace muster::parallel
