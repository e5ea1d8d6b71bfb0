#include "limits.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "muster/base/detail/listing.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/detail/callback.h"
#include "muster/trainer/detail/model_checkpoint.h"
#include "muster/trainer/detail/progress_bar.h"

namespace muster::trainer {
namespace {

/// All that is wrong with the options.
class Problems {
 public:
  void add_if(bool wrong, std::string text) {
    if (wrong) all_.push_back(std::move(text));
  }
  void limit(const char* name, const BatchLimit& limit) {
    if (limit.count()) add_if(*limit.count() < 0, formatted("{} is {}; give at least 0", name, *limit.count()));
    else
      add_if(!(*limit.part() >= 0 && *limit.part() <= 1),
             formatted("{} is {}; a part is between 0.0 and 1.0, a number of batches a whole number", name,
                       *limit.part()));
  }
  void least(const char* name, int64_t value, int64_t least) {
    add_if(value < least, formatted("{} is {}; give at least {}", name, value, least));
  }
  void least(const char* name, const std::optional<int64_t>& value, int64_t least_value) {
    if (value) least(name, *value, least_value);
  }
  void raise() const {
    if (all_.empty()) return;
    throw ConfigError("MU440", "the Trainer's options do not work: " + joined(all_, {}, kMostListed) +
                                   ". Change each of them; nothing has run yet");
  }

 private:
  std::vector<std::string> all_;
};

void check(const TrainerOptions& options) {
  Problems problems;
  problems.least("accumulate_grad_batches", options.accumulate_grad_batches, 1);
  problems.add_if(std::ranges::any_of(options.callbacks, [](const auto& callback) { return !callback; }),
                  "callbacks holds an empty pointer");
  problems.least("check_val_every_n_epoch", options.check_val_every_n_epoch, 1);
  problems.add_if(!options.check_val_every_n_epoch && options.val_check_interval.part() != nullptr,
                  "check_val_every_n_epoch is unset, so val_check_interval counts batches; give a whole number");
  problems.add_if(!options.enable_checkpointing && has_callback<ModelCheckpoint>(options.callbacks),
                  "enable_checkpointing is off, and callbacks has a ModelCheckpoint");
  problems.add_if(!options.enable_progress_bar && has_callback<TrainerProgressBar>(options.callbacks),
                  "enable_progress_bar is off, and callbacks has a TrainerProgressBar");
  problems.least("fast_dev_run", options.fast_dev_run, 0);
  problems.add_if(options.gradient_clip_val && !std::isfinite(*options.gradient_clip_val),
                  "gradient_clip_val is not finite");
  problems.limit("limit_predict_batches", options.limit_predict_batches);
  problems.limit("limit_test_batches", options.limit_test_batches);
  problems.limit("limit_train_batches", options.limit_train_batches);
  problems.limit("limit_val_batches", options.limit_val_batches);
  problems.least("log_every_n_steps", options.log_every_n_steps, 0);
  problems.least("max_epochs", options.max_epochs, -1);
  problems.least("max_steps", options.max_steps, -1);
  problems.least("min_epochs", options.min_epochs, 0);
  problems.least("min_steps", options.min_steps, 0);
  problems.add_if(options.max_epochs && *options.max_epochs >= 0 && options.min_epochs > options.max_epochs,
                  "min_epochs is greater than max_epochs");
  problems.add_if(options.max_steps >= 0 && options.min_steps > options.max_steps,
                  "min_steps is greater than max_steps");
  problems.least("num_sanity_val_steps", options.num_sanity_val_steps, -1);
  problems.least("reload_dataloaders_every_n_epochs", options.reload_dataloaders_every_n_epochs, 0);
  problems.limit("val_check_interval", options.val_check_interval);
  problems.raise();
}

}  // namespace

TrainerOptions checked(TrainerOptions options) {
  check(options);
  if (options.fast_dev_run > 0) {
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
  if (!options.max_epochs) options.max_epochs = options.max_steps == -1 ? 1000 : -1;
  if (!options.min_epochs && options.min_steps) options.min_epochs = 1;
  if (options.gradient_clip_val && *options.gradient_clip_val <= 0) options.gradient_clip_val.reset();
  return options;
}

std::optional<int64_t> batches_of(const BatchLimit& limit, std::optional<int64_t> size, const std::string& option) {
  if (const auto* count = limit.count()) return std::min(*count, size.value_or(*count));
  const double part = *limit.part();
  if (part == 1.0 || part == 0.0) return part == 0.0 ? 0 : size;
  if (!size)
    throw ConfigError("MU445", option +
                                   " is a part of the batches, and the loader does not know how many there are; "
                                   "give a whole number, or 1.0 for all");
  const auto batches = static_cast<int64_t>(static_cast<double>(*size) * part);
  if (batches < 1)
    throw ConfigError("MU445", formatted("{} is {}, which is less than one of the {} batches of the loader; give at "
                                         "least {}, or a whole number",
                                         option, part, *size, 1.0 / static_cast<double>(std::max<int64_t>(*size, 1))));
  return batches;
}

std::optional<int64_t> validation_interval(const BatchLimit& interval, std::optional<int64_t> batches, bool across) {
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

StopRule::StopRule(const TrainerOptions& options)
    : min_epochs(options.min_epochs), min_steps(options.min_steps), max_steps(options.max_steps) {
  if (options.max_epochs && *options.max_epochs >= 0) max_epochs = options.max_epochs;
}

}  // namespace muster::trainer
