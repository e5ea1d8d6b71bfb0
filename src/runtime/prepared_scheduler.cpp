#include <algorithm>
#include <utility>

#include <torch/types.h>

#include "muster/base/error.h"
#include "session.h"

namespace muster::runtime {
namespace {

/// LibTorch tells nobody which optimizer a scheduler steps, but shows its heirs the optimizer's rates.
struct SchedulerRates : torch::optim::LRScheduler {
  static std::vector<double> of(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&SchedulerRates::get_current_lrs))();
  }
};

/// Whether a change of the optimizer's rate is seen by the scheduler.
bool steps(const torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer) {
  auto& options = optimizer.param_groups().at(0).options();
  const double before = options.get_lr();
  options.set_lr(before + 1);
  const auto seen = SchedulerRates::of(scheduler);
  options.set_lr(before);
  return !seen.empty() && seen[0] == before + 1;
}

bool skipped(const std::weak_ptr<PreparedOptimizer>& entry) {
  const auto optimizer = entry.lock();
  return optimizer && optimizer->step_was_skipped();
}

}  // namespace

std::function<int()> Session::scheduler_turns(std::vector<std::weak_ptr<PreparedOptimizer>> optimizers) const {
  if (!options_.step_scheduler_with_optimizer) return [] { return 1; };
  return [optimizers = std::move(optimizers), accumulation = accumulation_] {
    if (!accumulation->sync() || std::any_of(optimizers.begin(), optimizers.end(), skipped)) return 0;
    return accumulation->scheduler_steps();
  };
}

Scheduler Session::prepare_scheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler) {
  require_launched();
  std::vector<std::weak_ptr<PreparedOptimizer>> linked;
  for (const auto& entry : *optimizers_)
    if (const auto prepared = entry.lock(); prepared && steps(*scheduler, prepared->inner())) linked.push_back(entry);
  if (linked.empty())
    throw UsageError("MU174",
                     "a scheduler was prepared whose optimizer is not; name the optimizer (a temporary has moved away "
                     "from under its scheduler) and prepare both");
  return Scheduler(
      [scheduler, turns = scheduler_turns(std::move(linked))] {
        for (int left = turns(); left > 0; --left) scheduler->step();
      },
      nullptr, saves_.add(std::make_shared<SavedScheduler>(scheduler)));
}

Scheduler Session::prepare_scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler) {
  require_launched();
  return Scheduler(
      nullptr,
      [scheduler, group = group_](double metric) {
        const auto mean = at::scalar_tensor(metric, at::kDouble);
        group.as_library("the metric of a scheduler").all_reduce(mean, comm::ReduceOp::mean);
        scheduler->step(static_cast<float>(mean.item<double>()));
      },
      saves_.add(std::make_shared<SavedScheduler>()));
}

Scheduler prepare_scheduler(Session& session, std::shared_ptr<torch::optim::LRScheduler> scheduler) {
  return session.prepare_scheduler(std::move(scheduler));
}
Scheduler prepare_scheduler(Session& session, std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler) {
  return session.prepare_scheduler(std::move(scheduler));
}

}  // namespace muster::runtime

namespace muster {

void Scheduler::step() const {
  if (!prepared_->step) throw UsageError("MU180", "this scheduler watches a metric; call step(metric)");
  prepared_->step();
}

void Scheduler::step(double metric) const {
  if (!prepared_->step_by_metric)
    throw UsageError("MU180", "this scheduler watches no metric; call step() without one");
  prepared_->step_by_metric(metric);
}

LRScheduler& Scheduler::operator*() const {
  if (!inner())
    throw UsageError("MU325",
                     "-> or * of a muster::Scheduler was used for a scheduler of LibTorch, which exposes neither rates "
                     "nor state; read the rates from the optimizer's param_groups(), or prepare a scheduler of "
                     "muster/schedule/schedulers.h");
  return *inner();
}

}  // namespace muster
