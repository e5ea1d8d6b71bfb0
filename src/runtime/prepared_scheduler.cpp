#include <c10/util/Type.h>
#include <torch/types.h>

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/runtime/loop_access.h"
#include "muster/schedule/schedulers.h"
#include "runtime_state.h"

namespace muster::runtime {

/// The state of a Scheduler handle. Either `step` or `step_by_metric` is empty.
struct PreparedScheduler {
  /// Warns if the steps made are one rank's part of what the schedule was made for.
  ~PreparedScheduler();
  /// Warns once, naming the schedule, if training has another number of steps than it was made for. The schedule may be
  /// up to `last` - 1 steps shorter.
  void compare_with(int64_t steps, int64_t last = 1);
  std::string class_name() const {
    const auto& scheduler = *inner;
    return c10::demangle(typeid(scheduler).name());
  }
  std::optional<int64_t> total_steps() const { return inner ? inner->total_steps() : std::nullopt; }

  std::function<void()> step;
  std::function<void(double)> step_by_metric;
  std::shared_ptr<const SavedScheduler> saved;
  std::shared_ptr<LRScheduler> inner;
  /// Steps the scheduler as many times as the optimizer's last step counts, once it is known whether that was made.
  std::function<void(const std::shared_ptr<PreparedScheduler>&)> step_with_optimizer;
  std::function<void()> wait;  ///< waits until the optimizer's last step is known
  bool with_optimizer = true;
  bool compared = false;
  int rank = 0, world_size = 1;
};

namespace {

constexpr const char* kHowToCount =
    "; a step is an update of the optimizer, and several ranks make fewer of them in an epoch: count the batches of "
    "the "
    "prepared loader (in a Trainer: estimated_stepping_batches())";

/// Gives access to the rates: LibTorch hides a scheduler's optimizer, but derived classes can read its rates.
struct SchedulerRates : torch::optim::LRScheduler {
  static std::vector<double> of(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&SchedulerRates::get_current_lrs))();
  }
};

/// Whether the scheduler steps this optimizer: it then sees a change of the optimizer's rate.
bool steps(const torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer) {
  auto& options = optimizer.param_groups().at(0).options();
  const double before = options.get_lr();
  options.set_lr(before + 1);
  const auto seen = SchedulerRates::of(scheduler);
  options.set_lr(before);
  return !seen.empty() && seen[0] == before + 1;
}

/// The prepared optimizers that a scheduler steps.
template <class Steps>
std::vector<std::weak_ptr<PreparedOptimizer>> stepped_optimizers(
    const std::vector<std::weak_ptr<PreparedOptimizer>>& optimizers, Steps&& steps) {
  std::vector<std::weak_ptr<PreparedOptimizer>> found;
  for (const auto& entry : optimizers)
    if (const auto prepared = entry.lock(); prepared && steps(prepared->inner())) found.push_back(entry);
  if (found.empty())
    throw UsageError("MU174",
                     "a scheduler was prepared whose optimizer is not; name the optimizer (a temporary has moved away "
                     "from under its scheduler) and prepare both");
  return found;
}

/// Steps a scheduler by the mean of all ranks' metrics.
template <class Plateau>
std::function<void(double)> step_by_mean(std::shared_ptr<Plateau> scheduler, const comm::Communicator& group) {
  return [scheduler = std::move(scheduler), group](double metric) {
    const auto mean = at::scalar_tensor(metric, at::kDouble);
    group.internal("the metric of a scheduler").all_reduce(mean, comm::ReduceOp::mean);
    scheduler->step(mean.item<double>());
  };
}

/// Waits until the last step of each optimizer is known and its schedulers have stepped.
std::function<void()> wait_for(std::vector<std::weak_ptr<PreparedOptimizer>> optimizers) {
  return [optimizers = std::move(optimizers)] {
    for (const auto& entry : optimizers)
      if (const auto optimizer = entry.lock()) optimizer->step_deferred_schedulers();
  };
}

bool skipped(const std::weak_ptr<PreparedOptimizer>& entry) {
  const auto optimizer = entry.lock();
  return optimizer && optimizer->step_was_skipped();
}

/// Steps the scheduler whenever these optimizers step, as many times as that step counts (Accelerate's
/// step_with_optimizer). Its first step warns, naming it, if the loop makes another number of steps than it was made
/// for.
void step_with_optimizers(const SchedulerContext& context, PreparedScheduler& scheduler,
                          std::vector<std::weak_ptr<PreparedOptimizer>> some) {
  scheduler.with_optimizer = context.with_optimizer;
  scheduler.rank = context.group.rank();
  scheduler.world_size = context.group.size();
  scheduler.wait = wait_for(some);
  scheduler.step_with_optimizer = [optimizers = std::move(some), accumulation = context.accumulation,
                                   loop_steps = context.loop_steps](const std::shared_ptr<PreparedScheduler>& own) {
    if (!accumulation->sync()) return;
    if (!own->compared && own->inner && own->inner->last_epoch() == 0)
      if (const auto loop = loop_steps())
        own->compare_with(loop->epochs * loop->in_epoch, loop->in_epoch);  // loops may end early
    const auto steps = [optimizers, count = accumulation->scheduler_steps()](PreparedScheduler& one) {
      if (std::any_of(optimizers.begin(), optimizers.end(), skipped)) return;
      for (int i = 0; i < count; ++i) one.step();
    };
    for (const auto& entry : optimizers)
      if (const auto optimizer = entry.lock(); optimizer && !optimizer->found_inf_is_ready())
        return optimizer->when_found_inf_is_ready(
            [steps, weak = std::weak_ptr(own)] {  // weak: `own` keeps the optimizer alive
              if (const auto alive = weak.lock()) steps(*alive);
            });
    steps(*own);
  };
}

}  // namespace

void PreparedScheduler::compare_with(int64_t steps, int64_t last) {
  if (std::exchange(compared, true)) return;
  const auto total = total_steps();
  if (total && (*total > steps || *total <= steps - last) && rank == 0)
    log::warning(class_name(), " was made for ", *total, " steps, and this training has ", steps, kHowToCount);
}

PreparedScheduler::~PreparedScheduler() {
  const auto total = total_steps();
  const auto made = inner ? inner->last_epoch() : 0;
  if (compared || !total || made <= 0 || made >= *total || rank != 0 || std::uncaught_exceptions() > 0) return;
  if (world_size > 1 && (*total + made / 2) / made == world_size)
    log::warning(class_name(), " was made for ", *total, " steps and made ", made, kHowToCount);
}

Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<torch::optim::LRScheduler> scheduler) {
  const auto context = state.scheduler_context();
  auto linked = stepped_optimizers(*context.optimizers,
                                   [&](torch::optim::Optimizer& optimizer) { return steps(*scheduler, optimizer); });
  auto prepared = std::make_shared<PreparedScheduler>();
  prepared->step = [scheduler] { scheduler->step(); };
  prepared->saved = context.saves.add(std::make_shared<SavedScheduler>(scheduler));
  step_with_optimizers(context, *prepared, std::move(linked));
  return Scheduler(std::move(prepared));
}

Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler) {
  const auto context = state.scheduler_context();
  auto prepared = std::make_shared<PreparedScheduler>();
  prepared->step_by_metric = step_by_mean(std::move(scheduler), context.group);
  prepared->saved = context.saves.add(std::make_shared<SavedScheduler>());
  prepared->wait = [all = context.optimizers] { wait_for (*all)(); };
  return Scheduler(std::move(prepared));
}

Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<muster::LRScheduler> scheduler) {
  const auto context = state.scheduler_context();
  auto linked = stepped_optimizers(
      *context.optimizers, [&](torch::optim::Optimizer& optimizer) { return &optimizer == &scheduler->optimizer(); });
  linked.resize(1);
  auto prepared = std::make_shared<PreparedScheduler>();
  prepared->saved = context.saves.add(std::make_shared<SavedScheduler>(scheduler));
  prepared->inner = scheduler;
  if (auto plateau = std::dynamic_pointer_cast<ReduceLROnPlateau>(scheduler)) {
    prepared->step_by_metric = step_by_mean(std::move(plateau), context.group);
    prepared->wait = wait_for(std::move(linked));
  } else {
    prepared->step = [scheduler, keep = linked.front().lock()] { scheduler->step(); };
    step_with_optimizers(context, *prepared, std::move(linked));
  }
  return Scheduler(std::move(prepared));
}

}  // namespace muster::runtime

namespace muster {

void expect_steps(const Scheduler& scheduler, int64_t steps) { scheduler.prepared().compare_with(steps); }

Scheduler::Scheduler(std::shared_ptr<runtime::PreparedScheduler> prepared) : prepared_(std::move(prepared)) {}
void Scheduler::set_step_with_optimizer(bool on) const { prepared_->with_optimizer = on; }

const std::shared_ptr<LRScheduler>& Scheduler::inner() const { return prepared_->inner; }
const std::shared_ptr<const runtime::SavedScheduler>& Scheduler::saved() const { return prepared_->saved; }

void Scheduler::step() const {
  if (!prepared_->step) throw UsageError("MU180", "this scheduler watches a metric; call step(metric)");
  if (prepared_->with_optimizer && prepared_->step_with_optimizer)
    return prepared_->step_with_optimizer(prepared_.pointer());
  if (prepared_->wait) prepared_->wait();
  prepared_->step();
}

void Scheduler::step(double metric) const {
  if (!prepared_->step_by_metric)
    throw UsageError("MU180", "this scheduler watches no metric; call step() without one");
  if (prepared_->wait) prepared_->wait();
  prepared_->step_by_metric(metric);
}

LRScheduler& Scheduler::operator*() const {
  if (!inner())
    throw UsageError("MU325",
                     "-> or * of a muster::Scheduler was used for a scheduler of LibTorch, which exposes neither rates "
                     "nor state; read the rates from the optimizer's param_groups(), or prepare a scheduler of "
                     "muster/schedule/schedulers.h");
  if (prepared_->wait) prepared_->wait();
  return *inner();
}

}  // namespace muster
