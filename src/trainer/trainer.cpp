#include "muster/trainer/trainer.h"

#include "core.h"
#include "options/trainer_fields.h"

namespace muster {

Trainer::Trainer(const TrainerOptions& options) { core_ = std::make_unique<trainer::Core>(*this, options); }
Trainer::~Trainer() = default;

void Trainer::run_fit(trainer::RunInputs inputs, const FitOptions& options) { core_->fit(std::move(inputs), options); }
std::vector<Metrics> Trainer::run_evaluate(trainer::RunInputs inputs, trainer::StepKind kind,
                                           const EvaluateOptions& options, const trainer::KeepOutput& keep) {
  return core_->evaluate(std::move(inputs), kind, options, keep);
}

void Trainer::stop() { core_->run.stop.request(); }
bool Trainer::should_stop() const { return core_->run.stop.requested(); }
void Trainer::set_max_epochs(int64_t epochs) {
  if (epochs < -1) trainer::raise({"max_epochs is " + std::to_string(epochs) + "; give at least -1"});
  core_->run.options.max_epochs = epochs;
}
int64_t Trainer::current_epoch() const { return core_->run.progress.epoch; }
int64_t Trainer::global_step() const { return core_->run.global_step(); }
std::optional<int64_t> Trainer::estimated_stepping_batches() { return core_->loaders.estimated_stepping_batches(); }
bool Trainer::sanity_checking() const { return core_->run.sanity_checking(); }
bool Trainer::fitting() const { return core_->run.is_training(); }
bool Trainer::validates_at_epoch_end_only() const {
  if (!core_->run.validates()) return true;
  const auto& interval = options().val_check_interval;
  return !interval.time() && interval.part() && *interval.part() == 1.0 && options().check_val_every_n_epoch == 1;
}
const Metrics& Trainer::callback_metrics() const { return core_->run_log.latest.get(); }
const TrainerOptions& Trainer::options() const { return core_->run.options; }
const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const {
  return core_->run.hooks.callbacks().empty() ? core_->run.options.callbacks : core_->run.hooks.callbacks();
}
void Trainer::save_checkpoint(const std::filesystem::path& folder, const SaveCheckpointOptions& how) {
  core_->checkpoints.save(folder, how);
}
void Trainer::wait_for_save() { core_->run.runtime.wait_for_save(); }
const Model<torch::nn::Module>& Trainer::model() const { return core_->run.preparation->required_model("model()"); }
const Runtime& Trainer::runtime() const { return core_->run.runtime; }

TrainerRecords::TrainerRecords() = default;
TrainerRecords::~TrainerRecords() = default;

const Metrics& TrainerRecords::logged_metrics() const { return core_->run_log.experiment.logged(); }
Metrics TrainerRecords::progress_bar_metrics() const { return core_->run_log.latest.shown(); }
const Trackers& TrainerRecords::logger() const { return core_->run_log.experiment.trackers(); }
const std::filesystem::path& TrainerRecords::log_dir() const { return core_->run_log.experiment.folder(); }
int64_t TrainerRecords::log_step() const { return core_->run_log.experiment.step(); }
bool TrainerRecords::logs_this_step() const { return core_->run_log.logs_this_step(); }
void TrainerRecords::log_metrics(const Metrics& values) {
  for (const auto& [name, value] : values) core_->run_log.latest.set(name, value);
  core_->run_log.experiment.log(values, log_step());
}
void TrainerRecords::set_accumulate_grad_batches(int batches) {
  core_->optimization.set_accumulate_grad_batches(batches);
}
std::vector<std::optional<int64_t>> TrainerRecords::num_batches(Stage stage) const {
  return core_->loaders.batches_of_pass(static_cast<trainer::StepKind>(stage));
}
std::vector<int64_t> TrainerRecords::batch_indices() const { return core_->evaluation.batch_indices(); }
bool TrainerRecords::may_be_step(int64_t multiple_of) const {
  const auto known = core_->run.progress.global_step, most = known + core_->run.preparation->pending_steps();
  return most / multiple_of * multiple_of >= known;
}
bool TrainerRecords::validates() const { return core_->run.validates(); }
bool TrainerRecords::validates_after_last_batch() const {
  return core_->run.progress.last_batch && core_->run.validates_in_epoch();
}
bool TrainerRecords::saves_inside_batch() const { return core_->run.inside_batch(); }
std::vector<Optimizers::Entry> TrainerRecords::configured_optimizers() const {
  std::vector<Optimizers::Entry> all;
  for (const auto& updates : core_->run.preparation->updates) {
    updates->step_deferred_schedulers();
    all.push_back({.optimizer = updates->own});
    for (const auto& schedule : updates->schedules) all.back().schedulers.push_back(schedule.config);
  }
  return all;
}

}  // namespace muster
