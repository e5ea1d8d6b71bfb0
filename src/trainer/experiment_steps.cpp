#include <algorithm>

#include "base/log.h"
#include "core.h"
#include "data/batch_indices.h"
#include "muster/trainer/callback.h"

namespace muster::trainer {

void Core::log_hyperparameters() {
  const auto& of_module = inputs_.module->hyperparameters();
  const auto of_data = inputs_.data ? inputs_.data->hyperparameters() : State();
  check_hyperparameters(of_module, of_data);
  experiment.log_hyperparams(of_module);
  experiment.log_hyperparams(of_data);
}

void Core::warn_log_every_n_steps() {
  const auto batches = batches_of_pass(StepKind::training).front();
  if (!experiment.active() || !runtime.is_main() || !batches || *batches >= options.log_every_n_steps) return;
  log::warning("an epoch has ", *batches, " batches, and log_every_n_steps is ", options.log_every_n_steps,
               ": most of what log() gets in a step is not written; set it to a smaller number");
}

bool Core::logs_this_step() const noexcept {
  return experiment.due(stop.requested()) || (options.fast_dev_run > 0 && options.log_every_n_steps > 0);
}

void Core::log_training_step() {
  if (!window_.begins || !runtime.is_main() || !logs_this_step()) return;
  if (latest.shows_any()) latest.get();
  if (!experiment.active()) return;
  Metrics values;
  for (const auto& [name, value] : training_book_.take_step_values()) values[name] = value.get();
  if (!values.empty()) experiment.log(std::move(values), experiment.step(), progress.epoch);
}

void Core::log_epoch(LogBook& book, int64_t step) {
  auto values = book.take_epoch_values();
  if (sanity_checking) return;
  experiment.read_waiting();
  if (experiment.active() && runtime.is_main() && !values.empty())
    experiment.log(std::move(values), step, progress.epoch);
}

void Core::log_evaluation_step(StepKind kind) {
  if (sanity_checking || !experiment.active()) return;
  // Validation inside fit() and validate() have separate counts.
  const auto key = static_cast<std::size_t>(stage_ == Stage::fit ? StepKind::training : kind);
  experiment.log_evaluation_step(key, place_.dataloader_idx, evaluation_book_.take_step_values());
}

std::vector<std::optional<int64_t>> Core::batches_of_pass(StepKind kind) {
  auto& prepared = setup_data(kind);
  if (kind == StepKind::training)
    return {batches_of(options.limit_train_batches, batches_in(prepared), "limit_train_batches")};
  std::vector<std::optional<int64_t>> all;
  for (const auto& loader : prepared.loaders) {
    auto batches = batches_of(evaluation_limit(options, kind), loader->known_size(), "the limit of batches");
    if (sanity_checking && options.num_sanity_val_steps >= 0)
      batches = std::min(batches.value_or(options.num_sanity_val_steps), options.num_sanity_val_steps);
    all.push_back(batches);
  }
  return all;
}

std::vector<int64_t> Core::batch_indices() const {
  return evaluated_pass_ ? data::batch_indices(*evaluated_pass_) : std::vector<int64_t>();
}

void Core::set_accumulate_grad_batches(int batches) {
  runtime.set_gradient_accumulation_steps(batches);
  options.accumulate_grad_batches = batches;
}

}  // namespace muster::trainer
