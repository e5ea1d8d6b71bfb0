#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "options/trainer_fields.h"

namespace muster::trainer {
namespace {

class Problems {
 public:
  explicit Problems(const std::function<bool(const std::string&)>& asks) : asks_(asks) {}
  void add_if(bool wrong, std::string text) {
    if (wrong) all_.push_back(std::move(text));
  }
  /// Records a contradiction between these options if `wrong`.
  void contradiction(std::initializer_list<const char*> names, bool wrong, std::string text) {
    add_if(wrong && std::ranges::all_of(names, asks_), std::move(text));
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
  void time(const char* name, const TimeSpan& time) {
    add_if(time && *time.value() < std::chrono::milliseconds(0), std::string(name) + " is negative");
  }
  std::vector<std::string> all() && { return std::move(all_); }

 private:
  const std::function<bool(const std::string&)>& asks_;
  std::vector<std::string> all_;
};

void check_values(Problems& problems, const TrainerOptions& options) {
  problems.least("accumulate_grad_batches", options.accumulate_grad_batches, 1);
  problems.add_if(std::ranges::any_of(options.callbacks, [](const auto& callback) { return !callback; }),
                  "callbacks holds an empty pointer");
  problems.least("check_val_every_n_epoch", options.check_val_every_n_epoch, 1);
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
  problems.time("max_time", options.max_time);
  problems.least("min_epochs", options.min_epochs, 0);
  problems.least("min_steps", options.min_steps, 0);
  problems.least("num_sanity_val_steps", options.num_sanity_val_steps, -1);
  problems.limit("overfit_batches", options.overfit_batches);
  problems.least("reload_dataloaders_every_n_epochs", options.reload_dataloaders_every_n_epochs, 0);
  problems.time("val_check_interval", options.val_check_interval.time());
  problems.limit("val_check_interval", options.val_check_interval);
  problems.add_if(options.val_check_interval.none(),
                  "val_check_interval is 0; give at least 1, or limit_val_batches = 0 for no validation");
}

void check_pairs(Problems& problems, const TrainerOptions& options) {
  problems.contradiction({"barebones", "detect_anomaly"}, options.barebones && options.detect_anomaly,
                         "barebones and detect_anomaly are both on");
  problems.contradiction({"barebones", "fast_dev_run"}, options.barebones && options.fast_dev_run > 0,
                         "barebones and fast_dev_run are both on");
  problems.contradiction({"barebones", "num_sanity_val_steps"},
                         options.barebones && options.num_sanity_val_steps != 0 &&
                             options.num_sanity_val_steps != TrainerOptions().num_sanity_val_steps,
                         formatted("barebones is on, and num_sanity_val_steps is {}", options.num_sanity_val_steps));
  problems.contradiction(
      {"check_val_every_n_epoch", "val_check_interval"},
      !options.check_val_every_n_epoch && options.val_check_interval.part() && !options.val_check_interval.time(),
      "check_val_every_n_epoch is unset, so val_check_interval counts batches; give a whole number");
  problems.contradiction({"fast_dev_run", "overfit_batches"},
                         options.fast_dev_run > 0 && !options.overfit_batches.none(),
                         "fast_dev_run and overfit_batches both say how many batches there are");
  problems.contradiction({"max_epochs", "min_epochs"},
                         options.max_epochs && *options.max_epochs >= 0 && options.min_epochs > options.max_epochs,
                         "min_epochs is greater than max_epochs");
  problems.contradiction({"max_steps", "min_steps"}, options.max_steps >= 0 && options.min_steps > options.max_steps,
                         "min_steps is greater than max_steps");
}

}  // namespace

std::vector<std::string> problems_of(const TrainerOptions& options,
                                     const std::function<bool(const std::string&)>& asks) {
  Problems problems(asks);
  check_values(problems, options);
  check_pairs(problems, options);
  return std::move(problems).all();
}

void raise(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw ConfigError("MU440", "the Trainer's options do not work: " + joined(problems, {}, kMostListed) +
                                 ". Change each of them; nothing has run yet");
}

}  // namespace muster::trainer
