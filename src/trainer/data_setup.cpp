#include <algorithm>
#include <utility>

#include "base/log.h"
#include "core.h"
#include "muster/base/error.h"
#include "muster/runtime/detail/converted_call.h"
#include "muster/runtime/loader_preparation.h"
#include "muster/trainer/gradient_accumulation_scheduler.h"

namespace muster::trainer {
namespace {

struct KindNames {
  Hook loader;
  const char* step;
  const char* call;
};
constexpr KindNames kNames[] = {{Hook::train_dataloader, "training_step", "fit"},
                                {Hook::val_dataloader, "validation_step", "validate"},
                                {Hook::test_dataloader, "test_step", "test"},
                                {Hook::predict_dataloader, "predict_step", "predict"}};

}  // namespace

PreparedLoaders& Core::setup_data(StepKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  auto& prepared = prepared_loaders_[index];
  if (prepared.made) return prepared;
  const auto& names = kNames[index];
  if (!inputs_.loaders[index])
    throw UsageError("MU444", std::string("there is no loader for ") + names.call +
                                  "(): give it one, or a data module "
                                  "or module with " +
                                  std::string(info(names.loader).name) + "() and " + names.step + "()");
  prepared.combined = hooks.run(names.loader, inputs_.loaders[index]);
  if (prepared.combined.parts.empty())
    throw UsageError("MU444", std::string("the list of loaders for ") + names.call + "() is empty; give at least one");
  // A resumed checkpoint of a run without validation has no entry for these loaders.
  const auto is_kind = [&](const State& one) { return one.integer() == static_cast<int64_t>(kind); };
  const bool saved =
      stage_ == Stage::fit && (!resumed_checkpoint_ || std::ranges::any_of(resumed_loaders_.list(), is_kind));
  const bool in_order = !options.overfit_batches.none() && index <= static_cast<std::size_t>(StepKind::validation);
  for (const auto& part : prepared.combined.parts) {
    const auto* steps = part.steps ? part.steps : prepared.combined.joint_steps;
    if (in_order && part.loader->options().shuffle && runtime.is_main())
      log::warning("overfit_batches takes the same batches in every epoch, so shuffling is off for ", names.call, "()");
    prepared.loaders.push_back(
        prepare_loader(runtime, *part.loader,
                       {.filler_batches = kind != StepKind::training,
                        .in_order = in_order,
                        .move_to_device = steps->transfer == nullptr,
                        .place = saved ? std::optional(static_cast<int64_t>(kind)) : std::nullopt}));
  }
  prepared.made = true;
  if (saved) prepared_kinds_.insert(kind);
  if (kind == StepKind::validation) note_validation_loaders();
  return prepared;
}

/// Loaders that a sanity check made serve the current epoch only if that epoch validates. An epoch that is resumed at
/// its start makes its loaders again, as it would have without the interruption.
void Core::note_validation_loaders() {
  const bool in_epoch = progress.batches > 0;
  validation_loaded_ = progress.epoch - (resumed_checkpoint_ && !in_epoch ? 1 : 0);
  if (sanity_checking && !validates_in_epoch()) validation_loaded_.reset();
}

void Core::forget_data(StepKind kind) {
  prepared_loaders_[static_cast<std::size_t>(kind)] = {};
  prepared_kinds_.erase(kind);
}

std::optional<int64_t> Core::estimated_stepping_batches() {
  if (!stage_) throw UsageError("MU446", "estimated_stepping_batches() was called outside of a run; call it in a hook");
  if (options.max_epochs.value_or(-1) < 0) return estimated_steps(options, std::nullopt);
  const auto batches =
      batches_of(options.limit_train_batches, batches_in(setup_data(StepKind::training)), "limit_train_batches");
  for (const auto& callback : hooks.callbacks())
    if (const auto* schedule = dynamic_cast<const GradientAccumulationScheduler*>(callback.get());
        schedule && batches) {
      int64_t steps = 0;
      for (int64_t epoch = 0; epoch < *options.max_epochs; ++epoch) {
        const int64_t window = schedule->accumulate_grad_batches(epoch);
        steps += (*batches + window - 1) / window;
      }
      return options.max_steps >= 0 ? std::min(steps, options.max_steps) : steps;
    }
  return estimated_steps(options, batches);
}

void Core::transfer(const StepTable& steps, void* batch, int64_t loader) {
  if (steps.transfer)
    hooks.run(Hook::on_batch_transfer,
              [&] { steps.transfer(inputs_.transfer_owner, batch, runtime.device(), loader); });
  steps.type.visit(batch,
                   [&](at::Tensor& tensor) { runtime::convert_input(*trained_module->model.prepared(), tensor); });
}

}  // namespace muster::trainer
