#include "muster/trainer/trainer_records.h"

#include "core.h"

namespace muster {

TrainerRecords::TrainerRecords() = default;
TrainerRecords::~TrainerRecords() = default;

const Metrics& TrainerRecords::logged_metrics() const { return core_->experiment.logged(); }
Metrics TrainerRecords::progress_bar_metrics() const { return core_->latest.shown(); }
const Trackers& TrainerRecords::logger() const { return core_->experiment.trackers(); }
const std::filesystem::path& TrainerRecords::log_dir() const { return core_->experiment.folder(); }
int64_t TrainerRecords::log_step() const { return core_->experiment.step(); }
bool TrainerRecords::logs_this_step() const { return core_->logs_this_step(); }
void TrainerRecords::log_metrics(const Metrics& values) {
  for (const auto& [name, value] : values) core_->latest.set(name, value);
  core_->experiment.log(values, log_step());
}
void TrainerRecords::set_accumulate_grad_batches(int batches) { core_->set_accumulate_grad_batches(batches); }
std::vector<std::optional<int64_t>> TrainerRecords::num_batches(Stage stage) const {
  return core_->batches_of_pass(static_cast<trainer::StepKind>(stage));
}
std::vector<int64_t> TrainerRecords::batch_indices() const { return core_->batch_indices(); }
bool TrainerRecords::may_be_step(int64_t multiple_of) const {
  const auto known = core_->progress.global_step, most = known + core_->trained_module->pending_steps();
  return most / multiple_of * multiple_of >= known;
}
bool TrainerRecords::validates() const { return core_->validates(); }
bool TrainerRecords::validates_after_last_batch() const {
  return core_->progress.last_batch && core_->validates_in_epoch();
}
bool TrainerRecords::saves_inside_batch() const { return core_->inside_batch(); }
std::vector<Optimizers::Entry> TrainerRecords::configured_optimizers() const {
  std::vector<Optimizers::Entry> all;
  for (const auto& trained : core_->trained_module->optimizers) {
    trained->step_deferred_schedulers();
    all.push_back({.optimizer = trained->own});
    for (const auto& schedule : trained->schedules) all.back().schedulers.push_back(schedule.config);
  }
  return all;
}

}  // namespace muster
