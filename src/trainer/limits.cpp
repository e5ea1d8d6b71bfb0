#include "limits.h"

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/callbacks.h"
#include "options/trainer_fields.h"

namespace muster::trainer {
namespace {

void check(const TrainerOptions& options) {
  Problems problems{problems_of(options, [](const std::string&) { return true; })};
  const bool saves = has_callback<ModelCheckpoint>(options.callbacks);
  problems.add_if(options.barebones && saves, "barebones is on, and callbacks has a ModelCheckpoint");
  problems.add_if(!options.enable_checkpointing && saves,
                  "enable_checkpointing is off, and callbacks has a ModelCheckpoint");
  problems.add_if(!options.enable_progress_bar && has_callback<TrainerProgressBar>(options.callbacks),
                  "enable_progress_bar is off, and callbacks has a TrainerProgressBar");
  raise(problems.all);
}

void run_few_batches(TrainerOptions& options) {
  const BatchLimit few = options.fast_dev_run;
  options.limit_predict_batches = options.limit_test_batches = few;
  options.limit_train_batches = options.limit_val_batches = few;
  options.max_epochs = 1;
  options.max_steps = options.fast_dev_run;
  options.num_sanity_val_steps = 0;
  options.val_check_interval = 1.0;
  options.check_val_every_n_epoch = 1;
  options.enable_checkpointing = false;
}

}  // namespace

TrainerOptions checked(TrainerOptions options) {
  check(options);
  if (!options.overfit_batches.none())
    options.limit_train_batches = options.limit_val_batches = options.overfit_batches;
  if (options.fast_dev_run > 0) run_few_batches(options);
  if (options.barebones) {
    options.enable_checkpointing = options.enable_model_summary = options.enable_progress_bar = false;
    options.logger.log_with.clear();
    options.num_sanity_val_steps = 0;
  }
  if (!options.max_epochs) options.max_epochs = options.max_steps == -1 && !options.max_time ? 1000 : -1;
  if (!options.min_epochs && options.min_steps) options.min_epochs = 1;
  if (options.gradient_clip_val && *options.gradient_clip_val <= 0) options.gradient_clip_val.reset();
  return options;
}

std::optional<int64_t> batches_of(const BatchLimit& limit, std::optional<int64_t> size, const std::string& option) {
  if (const auto* count = limit.count()) return std::min(*count, size.value_or(*count));
  const double part = *limit.part();
  if (part == 1.0 || part == 0.0 || size == 0) return part == 0.0 ? 0 : size;
  if (!size)
    throw ConfigError("MU445", option +
                                   " is a part of the batches, and the loader does not know how many there are; "
                                   "give a whole number, or 1.0 for all");
  const auto batches = static_cast<int64_t>(static_cast<double>(*size) * part);
  if (batches < 1)
    throw ConfigError("MU445", formatted("{} is {}, which is less than one of the {} batches of the loader; give at "
                                         "least {}, or a whole number",
                                         option, part, *size, 1.0 / static_cast<double>(*size)));
  return batches;
}

const BatchLimit& evaluation_limit(const TrainerOptions& options, StepKind kind) {
  if (kind == StepKind::test) return options.limit_test_batches;
  return kind == StepKind::predict ? options.limit_predict_batches : options.limit_val_batches;
}

std::optional<int64_t> validation_interval(const CheckInterval& interval, std::optional<int64_t> batches, bool across) {
  if (const auto* count = interval.count()) {
    if (!across && batches && *count > *batches)
      throw ConfigError("MU445",
                        formatted("val_check_interval is {} batches, and an epoch has {}; give at most that, or "
                                  "unset check_val_every_n_epoch to count through all epochs",
                                  *count, *batches));
    return std::max<int64_t>(*count, 1);
  }
  if (*interval.part() == 1.0) return std::nullopt;
  if (!batches)
    throw ConfigError("MU445",
                      "val_check_interval is a part of an epoch, and the loader does not know how many batches there "
                      "are; give a whole number, or 1.0 for the end of the epoch");
  return std::max<int64_t>(static_cast<int64_t>(static_cast<double>(*batches) * *interval.part()), 1);
}

}  // namespace muster::trainer
