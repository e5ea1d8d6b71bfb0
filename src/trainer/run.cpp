#include "run.h"

#include "limits.h"
#include "muster/trainer/callbacks.h"
#include "options/trainer_fields.h"

namespace muster::trainer {
namespace {

/// Adds a callback of this class unless one exists.
template <class C>
void add_default(TrainerOptions& options) {
  if (!has_callback<C>(options.callbacks)) options.callbacks.push_back(std::make_shared<C>());
}

}  // namespace

Run::Run(Trainer& trainer, const TrainerOptions& given)
    : trainer(trainer), options(checked(with_given_options(given, Environment::of_process()))),
      runtime(runtime_options(options)), hooks(trainer) {
  if (options.enable_progress_bar) add_default<TrainerProgressBar>(options);
  if (options.enable_model_summary) add_default<ModelSummary>(options);
  if (options.enable_checkpointing) add_default<ModelCheckpoint>(options);
  runtime.launch();
  options.accumulate_grad_batches = runtime.gradient_accumulation_steps();  // the launcher may have set it
}

void Run::enter(RunInputs inputs, Stage stage) {
  inputs_ = std::move(inputs);
  stage_ = stage;
  phase_ = Phase::setup;
}

void Run::leave() {
  stage_.reset();
  phase_ = Phase::setup;
}

bool Run::validates() const {
  const auto kind = static_cast<std::size_t>(StepKind::validation);
  return inputs_.loaders[kind] && inputs_.steps[kind] && !options.limit_val_batches.none();
}

bool Run::validates_in_epoch() const {
  const auto& every = options.check_val_every_n_epoch;
  return validates() && (!every || (progress.epoch + 1) % *every == 0);
}

bool Run::inside_batch() const noexcept {
  return progress.point == SavePoint::in_batch || (failed_ && progress.point != SavePoint::none);
}

std::string Run::modes_now() const {
  std::string modes;
  inputs_.module->apply([&](const torch::nn::Module& one) { modes += one.is_training() ? 't' : 'e'; });
  return modes;
}

void Run::load_modes(const std::string& modes) {
  if (modes.size() != modes_now().size()) return;
  std::size_t i = 0;
  inputs_.module->apply([&](torch::nn::Module& one) { one.torch::nn::Module::train(modes[i++] == 't'); });
}

}  // namespace muster::trainer
