#include "options/trainer_fields.h"

#include <cmath>

#include "base/options_text.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/options.h"
#include "options/program_options.h"
#include "options/runtime_fields.h"

/// Conversions to and from text for types that only TrainerOptions has.
namespace muster::options {

template <>
struct Value<std::filesystem::path> {
  static constexpr const char* kType = "path";
  static std::string read(const std::string& text, std::filesystem::path& value) {
    value = text;
    return "";
  }
  static std::string write(const std::filesystem::path& value) { return value.string(); }
};

/// An optional number.
template <class T>
struct OptionalNumber {
  static std::string read(const std::string& text, std::optional<T>& value, const char* wanted) {
    T number{};
    if (text == "none") value.reset();
    else if (Value<T>::read(text, number).empty()) value = number;
    else return wanted;
    return "";
  }
  static std::string write(const std::optional<T>& value) { return value ? Value<T>::write(*value) : "none"; }
};

template <>
struct Value<std::optional<int64_t>> : OptionalNumber<int64_t> {
  static constexpr const char* kType = "whole number or none";
  static std::string read(const std::string& text, std::optional<int64_t>& value) {
    return OptionalNumber::read(text, value, kType);
  }
};

template <>
struct Value<std::optional<double>> : OptionalNumber<double> {
  static constexpr const char* kType = "number or none";
  static std::string read(const std::string& text, std::optional<double>& value) {
    return OptionalNumber::read(text, value, kType);
  }
};

template <>
struct Value<ClipAlgorithm> : WordValue<trainer::ClipWords> {};

/// A number with a decimal point is a fraction, one without it a number of batches.
template <>
struct Value<BatchLimit> {
  static constexpr const char* kType = "batches, or a part such as 0.5";
  static std::string read(const std::string& text, BatchLimit& value) {
    int64_t count = 0;
    double part = 0;
    if (Value<int64_t>::read(text, count).empty()) value = count;
    else if (Value<double>::read(text, part).empty()) value = part;
    else return kType;
    return "";
  }
  static std::string write(const BatchLimit& value) {
    if (const auto* count = value.count()) return Value<int64_t>::write(*count);
    const auto text = Value<double>::write(*value.part());
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
};

template <>
struct Value<TimeSpan> {
  static constexpr const char* kType = "DD:HH:MM:SS, a duration such as 90s, or none";
  static std::string read(const std::string& text, TimeSpan& value) {
    std::chrono::milliseconds duration{};
    if (text == "none") value = {};
    else if (Value<std::chrono::milliseconds>::read(text, duration).empty()) value = duration;
    else return kType;
    return "";
  }
  static std::string write(const TimeSpan& value) { return value.text(); }
};

template <>
struct Value<CheckInterval> {
  static constexpr const char* kType = "batches, a part such as 0.5, or a time: DD:HH:MM:SS or 90s";
  static std::string read(const std::string& text, CheckInterval& value) {
    BatchLimit batches = 1.0;
    TimeSpan time;
    if (Value<BatchLimit>::read(text, batches).empty())
      value = batches.count() ? CheckInterval(*batches.count()) : CheckInterval(*batches.part());
    else if (Value<TimeSpan>::read(text, time).empty() && time) value = time;
    else return kType;
    return "";
  }
  static std::string write(const CheckInterval& value) {
    return value.time() ? value.time().text() : Value<BatchLimit>::write(value);
  }
};

}  // namespace muster::options

namespace muster::trainer {
namespace {

using options::Description;

/// Lightning's environment variable for an argument of its Trainer.
std::string lightnings_variable(const std::string& name) { return "PL_TRAINER_" + upper_case(name); }

/// Collects the fields of the table.
struct Fields {
  template <class T>
  void add(const std::string& name, T TrainerOptions::*field, Description description) {
    const auto full = "trainer." + name;
    description.variable = options::variable_of(full);
    description.other_tools = {lightnings_variable(name)};
    table.options.push_back(options::option(full, field, std::move(description)));
    if (auto& added = table.options.back().description; added.code_only) added.other_tools.clear();
  }
  options::Table<TrainerOptions> table;
};

using O = TrainerOptions;

/// Accepts Lightning's boolean for an option that is a number here: true means 1.
void take_booleans(options::Option<TrainerOptions>& option) {
  option.description.type = "whole number, true (1) or false (0)";
  option.read = [read = option.read](TrainerOptions& values, const std::string& text) {
    const auto on = read_bool(text);
    return read(values, !on ? text : *on ? "1" : "0");
  };
}

void add_loops(Fields& fields) {
  fields.add("barebones", &O::barebones,
             {.help = "no checkpoints, no sanity check, and log() does nothing",
              .tested_by = "FitLoopOptions.ABareRunLogsAndSavesNothing"});
  fields.add(
      "callbacks", &O::callbacks,
      {.help = "objects whose hooks the Trainer calls", .tested_by = "FitLoop.ACallbackAsksForTheBatchByItsType"});
  fields.add("check_val_every_n_epoch", &O::check_val_every_n_epoch,
             {.help = "validate in epochs whose number, from 1, divides by this; none: val_check_interval counts "
                      "through all epochs",
              .tested_by = "FitLoop.ValidationRunsAsOftenAsAsked"});
  fields.add(
      "default_root_dir", &O::default_root_dir,
      {.help = "folder of checkpoints and logs", .tested_by = "FitLoop.BoringModelTrainsValidatesTestsAndPredicts"});
  fields.add("detect_anomaly", &O::detect_anomaly,
             {.help = "backward names the operator that made a gradient NaN; slow",
              .tested_by = "FitLoopOptions.AnAnomalyIsFoundInBackward"});
  fields.add("enable_checkpointing", &O::enable_checkpointing,
             {.help = "add a ModelCheckpoint if the program has none",
              .tested_by = "FitLoop.AFastRunTakesFewBatchesAndWritesNothing"});
  fields.add("enable_model_summary", &O::enable_model_summary,
             {.help = "add a ModelSummary if the program has none",
              .tested_by = "ModelSummary.TheTrainerAddsOneUnlessItIsOff"});
  fields.add("enable_progress_bar", &O::enable_progress_bar,
             {.help = "add a TrainerProgressBar if the program has none",
              .tested_by = "TrainerProgressBar.TheTrainerAddsOneUnlessToldOtherwise"});
  fields.add("fast_dev_run", &O::fast_dev_run,
             {.help = "so many batches of every kind, one epoch, nothing written; 0: off",
              .tested_by = "FitLoop.AFastRunTakesFewBatchesAndWritesNothing"});
  take_booleans(fields.table.options.back());
  fields.add("gradient_clip_algorithm", &O::gradient_clip_algorithm,
             {.help = "clip the norm of all gradients, or each value",
              .tested_by = "Optimization.GradientsAreClippedBeforeTheStep"});
  fields.add("gradient_clip_val", &O::gradient_clip_val,
             {.help = "clip gradients to this; none: do not clip",
              .tested_by = "Optimization.GradientsAreClippedBeforeTheStep"});
  fields.add("inference_mode", &O::inference_mode,
             {.help = "validate(), test() and predict() of one rank run in inference mode",
              .tested_by = "FitLoopOptions.EvaluationRunsInInferenceModeOutsideOfFit"});
}

void add_logging(Fields& fields) {
  fields.add(
      "log_every_n_steps", &O::log_every_n_steps,
      {.help = "batches between two rows of values of a step; 0: none", .tested_by = "ExperimentLog.ZeroLogsNoStep"});
  fields.add("logger", &O::logger,
             {.help = "what log() writes to, and where", .tested_by = "ExperimentLog.RowsHaveTheStepsOfLightning"});
}

void add_limits(Fields& fields) {
  const auto limit = [&](const char* name, auto field, const char* of) {
    fields.add(name, field,
               {.help = std::string("batches of ") + of + " at most, or a part of them; 0: leave it out",
                .tested_by = "FitLoopOptions.EachStageHasALimit"});
  };
  limit("limit_predict_batches", &O::limit_predict_batches, "predict()");
  limit("limit_test_batches", &O::limit_test_batches, "test()");
  limit("limit_train_batches", &O::limit_train_batches, "an epoch of training");
  limit("limit_val_batches", &O::limit_val_batches, "validation");
  fields.add("max_epochs", &O::max_epochs,
             {.help = "epochs of training; none: 1000 unless max_steps or max_time is given; -1: no limit",
              .tested_by = "FitLoop.StepsEndWithinAnEpochAndAgainIsDoneAtOnce"});
  fields.add("max_steps", &O::max_steps,
             {.help = "updates of all optimizers; -1: no limit",
              .tested_by = "FitLoop.StepsEndWithinAnEpochAndAgainIsDoneAtOnce"});
  fields.add("max_time", &O::max_time,
             {.help = "training ends after so much time, that before resuming included",
              .tested_by = "FitLoopOptions.TimeEndsTrainingAfterTheBatchAndTheMinima"});
  fields.add(
      "min_epochs", &O::min_epochs,
      {.help = "a stop waits for so many epochs", .tested_by = "FitLoop.AStopWaitsForTheMinimaAndValidatesFirst"});
  fields.add(
      "min_steps", &O::min_steps,
      {.help = "a stop waits for so many updates", .tested_by = "FitLoop.AStopWaitsForTheMinimaAndValidatesFirst"});
  fields.add("num_sanity_val_steps", &O::num_sanity_val_steps,
             {.help = "validation batches before training; -1: all",
              .tested_by = "FitLoop.TheSanityCheckTakesAsManyBatchesAsAsked"});
  fields.add("overfit_batches", &O::overfit_batches,
             {.help = "train and validate on these batches only, in the order of the data; 0.0: off",
              .tested_by = "FitLoopOptions.OverfittingTakesTheSameBatchesInOrder"});
  fields.add("reload_dataloaders_every_n_epochs", &O::reload_dataloaders_every_n_epochs,
             {.help = "make the loaders again every so many epochs; 0: once",
              .tested_by = "FitLoop.LoadersAreMadeAnewAsOftenAsAsked"});
  fields.add("requeue", &O::requeue,
             {.help = "called after SIGUSR1, with the checkpoint that was saved",
              .tested_by = "Termination.SIGUSR1QueuesTheJobAgainAndOwnHandlersRun"});
  fields.add("sync_batchnorm", &O::sync_batchnorm,
             {.help = "batch normalization uses statistics of all ranks",
              .tested_by = "FitLoopOptions.BatchNormalizationUsesAllRanks"});
  fields.add("val_check_interval", &O::val_check_interval,
             {.help = "when to validate: after batches, a part of an epoch, or a time since the last validation",
              .tested_by = "FitLoop.ValidationRunsAsOftenAsAsked"});
}

}  // namespace

const options::Table<TrainerOptions>& option_table() {
  static const options::Table<TrainerOptions> table = [] {
    Fields fields;
    add_loops(fields);
    add_logging(fields);
    add_limits(fields);
    return std::move(fields.table);
  }();
  return table;
}

std::vector<Description> option_descriptions() { return option_table().descriptions(); }

void check_launch_options(const options::RawOptions& given_options) {
  const auto reading = options::read_texts(option_table(), given_options);
  raise(
      problems_of(reading.values, [&](const std::string& name) { return reading.places.contains("trainer." + name); }));
}

TrainerOptions with_given_options(TrainerOptions values, const Environment& variables) {
  const auto given_options = runtime::find_given_options(
      {.line = options::read_line(variables.find(options::kLineVariable).value_or("")), .variables = variables});
  for (const auto& option : option_table().options)
    if (const auto found = given_options.find(option.description.name); found != given_options.end())
      options::follow(option, found->second, values);
  return values;
}

RuntimeOptions runtime_options(const TrainerOptions& options) {
  auto result = runtime::copied_options<RuntimeOptions>(options);
  result.gradient_accumulation = {.num_steps = options.accumulate_grad_batches,
                                  .sync_with_dataloader = false,  // the loops know the last batch of several loaders
                                  .weighting = options.gradient_weighting};
  result.step_scheduler_with_optimizer = false;  // the loops step schedulers
  return result;
}

std::map<std::string, std::string> written_options(const TrainerOptions& options) {
  std::map<std::string, std::string> texts;
  for (const auto& option : option_table().options)
    if (!option.description.code_only) texts[option.description.name] = option.write(options);
  return texts;
}

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
