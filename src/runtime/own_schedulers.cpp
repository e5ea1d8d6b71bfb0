#include <algorithm>
#include <utility>

#include <torch/types.h>

#include "muster/base/error.h"
#include "muster/schedule/detail/composed_schedulers.h"
#include "session.h"

namespace muster::runtime {

Scheduler Session::prepare_scheduler(std::shared_ptr<muster::LRScheduler> scheduler) {
  require_launched();
  const auto found = std::find_if(optimizers_->begin(), optimizers_->end(), [&](const auto& entry) {
    const auto prepared = entry.lock();
    return prepared && &prepared->inner() == &scheduler->optimizer();
  });
  if (found == optimizers_->end())
    throw UsageError("MU174",
                     "a scheduler was prepared whose optimizer is not; name the optimizer (a temporary has moved away "
                     "from under its scheduler) and prepare both");
  const auto saved = saves_.add(std::make_shared<SavedScheduler>(scheduler));
  if (const auto plateau = std::dynamic_pointer_cast<ReduceLROnPlateau>(scheduler))
    return Scheduler(
        nullptr,
        [plateau, group = group_](double metric) {
          const auto mean = at::scalar_tensor(metric, at::kDouble);
          group.as_library("the metric of a scheduler").all_reduce(mean, comm::ReduceOp::mean);
          plateau->step(mean.item<double>());
        },
        saved, scheduler);
  return Scheduler(
      [scheduler, keep = found->lock(), turns = scheduler_turns({*found})] {
        for (int left = turns(); left > 0; --left) scheduler->step();
      },
      nullptr, saved, scheduler);
}

Scheduler prepare_scheduler(Session& session, std::shared_ptr<muster::LRScheduler> scheduler) {
  return session.prepare_scheduler(std::move(scheduler));
}

}  // namespace muster::runtime
