#pragma once  // for other rooms

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/mutex.h"

namespace muster::parallel {

/// Bits of the program's own that travel with the flags of reductions: every rank gets those that any rank has sent.
/// The thread that runs a reduction calls these functions.
class Piggyback {
 public:
  static constexpr int kBits = 4;
  virtual ~Piggyback() = default;
  /// The bits that this rank sends now.
  virtual unsigned send() = 0;
  /// The bits that any rank has sent.
  virtual void receive(unsigned any) = 0;
};

/// What the gradient reductions of all models of a program share: the optimizer step that they belong to, and the order
/// of the reductions of one backward. A rank whose loss did not take part in that backward repeats this order. A model
/// is identified by its index among the models that the program prepared. Reductions are collective, so every rank has
/// an equal record.
/// Thread safety: all functions may be called from several threads.
class ReductionRecord {
 public:
  /// The reductions of one backward.
  struct Order {
    std::vector<int64_t> began;  ///< indices of models, in the order of their first messages
    std::vector<int64_t> ended;
  };

  /// Sets the step of the reductions that follow. Reductions of different steps do not match each other.
  void set_step(int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

  /// A model's reduction in a backward begins. If others have not ended yet, it belongs to their backward.
  void began(int64_t index);
  void ended(int64_t index);
  /// The last backward that reached this model; nullptr if there was none, or if it was not completed.
  std::shared_ptr<const Order> latest(int64_t index) const;
  /// This rank repeats the reductions of a backward without running one. They count as the latest of all its models.
  void repeat(const std::shared_ptr<const Order>& order);

  /// Whether the model had a reduction since consume().
  bool seen(int64_t index) const;
  /// An optimizer has used the gradients, or they were cleared.
  void consume();

  /// Sends these bits with every reduction from now on, as long as the object exists.
  void carry(std::weak_ptr<Piggyback> bits);
  /// Bits to send with the flags of a reduction, and those of all ranks that have arrived with them.
  unsigned send_bits() const;
  void receive_bits(unsigned any) const;

 private:
  std::shared_ptr<Piggyback> bits() const;

  std::atomic<int64_t> step_ = 0;
  mutable base::Mutex mutex_;
  std::shared_ptr<Order> current_ MUSTER_GUARDED_BY(mutex_);
  std::set<int64_t> open_ MUSTER_GUARDED_BY(mutex_);
  std::set<int64_t> seen_ MUSTER_GUARDED_BY(mutex_);
  std::map<int64_t, std::shared_ptr<const Order>> latest_ MUSTER_GUARDED_BY(mutex_);  // by model index
  std::weak_ptr<Piggyback> bits_ MUSTER_GUARDED_BY(mutex_);
};

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
