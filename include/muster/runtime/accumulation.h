#pragma once

#include "muster/runtime/values.h"

#include <memory>
#include <vector>

namespace muster {

namespace runtime {
class Accumulation;
}

/// One micro-batch of an accumulation window, from accumulate() to the end of the block. While it does not end its window,
/// gradients of the models stay local, and optimizers, schedulers and clipping of the same runtime do nothing.
class [[nodiscard("name the scope: auto window = ...")]] AccumulationScope {
 public:
  AccumulationScope(std::shared_ptr<runtime::Accumulation> accumulation, std::vector<std::shared_ptr<parallel::ManagedModel>> models);
  AccumulationScope(const AccumulationScope&) = delete;
  AccumulationScope& operator=(const AccumulationScope&) = delete;
  ~AccumulationScope();

  /// This micro-batch counts for so many in the mean, such as the tokens its loss is a mean over, instead of its samples.
  /// Requires: every rank counts the same micro-batches of the window. Throws: UsageError (MU182) after its backward.
  void count(double samples);
  /// The micro-batch ends its window: the optimizer steps.
  bool sync_gradients() const;

 private:
  std::shared_ptr<runtime::Accumulation> accumulation_;
  runtime::NoSyncScope quiet_;
};

}  // namespace muster
