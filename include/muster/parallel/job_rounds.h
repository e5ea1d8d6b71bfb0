#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace muster::parallel {

/// What the averagings of gradients of one program's models have in common: the step of the program's optimizers that they belong to, and how
/// those of one backward followed each other, which a rank whose loss missed that backward repeats. A model is known by its place among those that
/// the program prepared. Averagings are collective, so every rank has the same record.
/// Thread safety: all calls may come from several threads.
class JobRounds {
 public:
  /// The averagings of one backward.
  struct Order {
    std::vector<int64_t> began;   ///< places of models, as their first messages followed each other
    std::vector<int64_t> ended;
  };

  /// Averagings from now on are of this step; ranks in different ones do not go together.
  void set_step(int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

  /// A model's averaging in a backward; what begins before all others have ended is of the same backward.
  void began(int64_t place);
  void ended(int64_t place);
  /// The backward that reached this model last; nullptr if none did, or it did not come to its end.
  std::shared_ptr<const Order> latest(int64_t place) const;
  /// This rank repeats one without a backward: it counts as the latest of all its models.
  void repeat(const std::shared_ptr<const Order>& order);

  /// Whether the model had an averaging since use_up().
  bool met(int64_t place) const;
  /// An optimizer has used gradients up, or cleared them.
  void use_up();

 private:
  std::shared_ptr<const Order>& latest_of(int64_t place);

  std::atomic<int64_t> step_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<Order> current_;
  std::vector<int64_t> open_, met_;
  std::vector<std::shared_ptr<const Order>> latest_;   // by place
};

}  // namespace muster::parallel
