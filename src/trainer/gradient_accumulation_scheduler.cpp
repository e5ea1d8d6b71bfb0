#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

namespace muster {

GradientAccumulationScheduler::GradientAccumulationScheduler(std::map<int64_t, int> scheduling)
    : scheduling_(std::move(scheduling)) {
  std::vector<std::string> problems;
  if (scheduling_.empty()) problems.emplace_back("it names no epoch; give at least one, as {{4, 2}}");
  for (const auto& [epoch, batches] : scheduling_) {
    if (epoch < 0) problems.push_back(formatted("epoch {} is below 0", epoch));
    if (batches < 1) problems.push_back(formatted("epoch {} has {} batches; give at least 1", epoch, batches));
  }
  if (!problems.empty())
    throw ConfigError("MU451", "the options of GradientAccumulationScheduler do not work: " + joined(problems));
}

int GradientAccumulationScheduler::accumulate_grad_batches(int64_t epoch) const {
  const auto next = scheduling_.upper_bound(epoch);
  return next == scheduling_.begin() ? 1 : std::prev(next)->second;
}

void GradientAccumulationScheduler::setup(Trainer& trainer, TrainerModule& module, Stage stage) {
  if (stage != Stage::fit) return;
  if (!module.automatic_optimization)
    throw UsageError("MU435",
                     "GradientAccumulationScheduler has no effect in manual optimization, where the module decides "
                     "when it steps; leave it out");
  if (const auto own = trainer.options().accumulate_grad_batches; own != 1)
    throw UsageError("MU435", formatted("accumulate_grad_batches is {}, and GradientAccumulationScheduler sets it by "
                                        "epoch; name epoch 0 in it, and leave the option at 1",
                                        own));
  active_ = true;
}

void GradientAccumulationScheduler::teardown(Trainer& trainer, TrainerModule&, Stage) {
  if (std::exchange(active_, false)) trainer.set_accumulate_grad_batches(1);
}

// Must run before the open window of a resumed checkpoint is read: the lengths of both windows must be equal.
void GradientAccumulationScheduler::on_fit_start(Trainer& trainer, TrainerModule&) {
  trainer.set_accumulate_grad_batches(accumulate_grad_batches(trainer.current_epoch()));
}

void GradientAccumulationScheduler::on_train_epoch_start(Trainer& trainer, TrainerModule&) {
  trainer.set_accumulate_grad_batches(accumulate_grad_batches(trainer.current_epoch()));
}

}  // namespace muster
