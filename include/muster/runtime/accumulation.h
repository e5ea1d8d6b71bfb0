#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "muster/runtime/detail/values.h"

namespace muster {

namespace runtime {
class Accumulation;
}

/// One micro-batch of an accumulation window, from accumulate() to the end of the block. Before the last micro-batch of
/// the window, gradients of the models stay local (unless sync_each_batch is set), and optimizers, schedulers and
/// clipping of this runtime do nothing.
class [[nodiscard("name the scope: auto window = ...")]] AccumulationScope {
 public:
  AccumulationScope(std::shared_ptr<runtime::Accumulation> accumulation,
                    const std::vector<std::shared_ptr<parallel::ManagedModel>>& models);
  AccumulationScope(const AccumulationScope&) = delete;
  AccumulationScope& operator=(const AccumulationScope&) = delete;
  ~AccumulationScope();

  /// Sets the weight of this micro-batch in the mean over the window, such as the number of tokens that its loss
  /// averages over. Without this call, the weight is the number of samples.
  /// Requires: every rank calls it in the same micro-batches of the window. Throws: UsageError (MU182) after the
  /// micro-batch's backward; (MU183) inside join_uneven_inputs().
  void count(double samples);
  /// Ends the window with this micro-batch. Collective. Throws: UsageError (MU430) after a backward of the micro-batch;
  /// (MU431) inside join_uneven_inputs().
  void end_window();
  /// Whether the micro-batch ends its window, so that the optimizer steps.
  bool sync_gradients() const;

 private:
  std::shared_ptr<runtime::Accumulation> accumulation_;
  std::optional<runtime::NoSyncScope> quiet_;
};

}  // namespace muster
