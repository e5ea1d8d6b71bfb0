#include "muster/trainer/trainer.h"

#include <string>
#include <utility>

#include "core.h"
#include "muster/base/error.h"
#include "option_check.h"

namespace muster {

Trainer::Trainer(const TrainerOptions& options) { core_ = std::make_unique<trainer::Core>(*this, options); }
Trainer::~Trainer() = default;

void Trainer::run_fit(trainer::RunInputs inputs, const FitOptions& options) { core_->fit(std::move(inputs), options); }
std::vector<Metrics> Trainer::run_evaluate(trainer::RunInputs inputs, trainer::StepKind kind,
                                           const EvaluateOptions& options) {
  return core_->evaluate(std::move(inputs), kind, options, nullptr);
}
std::size_t Trainer::run_predict(trainer::RunInputs inputs, const EvaluateOptions& options, const Keep& keep) {
  return core_->evaluate(std::move(inputs), trainer::StepKind::predict, options, keep).size();
}

void Trainer::stop() { core_->stop.request(); }
bool Trainer::should_stop() const { return core_->stop.requested(); }
void Trainer::set_max_epochs(int64_t epochs) {
  if (epochs < -1) trainer::raise({"max_epochs is " + std::to_string(epochs) + "; give at least -1"});
  core_->options.max_epochs = epochs;
}
int64_t Trainer::current_epoch() const { return core_->progress.epoch; }
int64_t Trainer::global_step() const { return core_->global_step(); }
std::optional<int64_t> Trainer::estimated_stepping_batches() { return core_->estimated_stepping_batches(); }
bool Trainer::sanity_checking() const { return core_->sanity_checking; }
bool Trainer::fitting() const { return core_->stage() == Stage::fit && core_->training; }
bool Trainer::validates_at_epoch_end_only() const {
  if (!core_->validates()) return true;
  const auto& interval = options().val_check_interval;
  return !interval.time() && interval.part() && *interval.part() == 1.0 && options().check_val_every_n_epoch == 1;
}
const Metrics& Trainer::callback_metrics() const { return core_->latest.get(); }
const TrainerOptions& Trainer::options() const { return core_->options; }
const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const {
  return core_->hooks.callbacks().empty() ? core_->options.callbacks : core_->hooks.callbacks();
}
void Trainer::save_checkpoint(const std::filesystem::path& folder, const SaveCheckpointOptions& how) {
  core_->save_checkpoint(folder, how);
}
void Trainer::wait_for_save() { core_->runtime.wait_for_save(); }
const Model<torch::nn::Module>& Trainer::model() const { return core_->trained_module->required_model("model()"); }
const Runtime& Trainer::runtime() const { return core_->runtime; }

}  // namespace muster
