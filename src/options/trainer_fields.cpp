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

template <class Number>
  requires std::same_as<Number, int64_t> || std::same_as<Number, double>
struct Value<std::optional<Number>> {
  static constexpr const char* kType = std::integral<Number> ? "whole number or none" : "number or none";
  static std::string read(const std::string& text, std::optional<Number>& value) {
    if (text == "none") value.reset();
    else if (const auto number = parse_number<Number>(text)) value = number;
    else return kType;
    return "";
  }
  static std::string write(const std::optional<Number>& value) { return value ? Value<Number>::write(*value) : "none"; }
};

template <>
struct Value<ClipAlgorithm> : WordValue<trainer::ClipWords> {};

/// A number with a decimal point is a fraction, one without it a number of batches.
template <>
struct Value<BatchLimit> {
  static constexpr const char* kType = "batches, or a part such as 0.5";
  static std::string read(const std::string& text, BatchLimit& value) {
    if (const auto count = parse_number<int64_t>(text)) value = *count;
    else if (const auto part = parse_number<double>(text)) value = *part;
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

using Made = options::OptionsOf<TrainerOptions>;

/// Accepts Lightning's boolean for an option that is a number here: true means 1.
void take_booleans(options::Option<TrainerOptions>& option) {
  option.description.type = "whole number, true (1) or false (0)";
  option.read = [read = option.read](TrainerOptions& values, const std::string& text) {
    const auto on = read_bool(text);
    return read(values, !on ? text : *on ? "1" : "0");
  };
}

void add_loops_and_logging(Made& made) {
  made.add(MUSTER_FIELD(barebones), "no checkpoints, no sanity check, and log() does nothing",
           "FitLoopOptions.ABareRunLogsAndSavesNothing");
  made.add(MUSTER_FIELD(callbacks), "objects whose hooks the Trainer calls",
           "FitLoop.ACallbackAsksForTheBatchByItsType");
  made.add(
      MUSTER_FIELD(check_val_every_n_epoch),
      "validate in epochs whose number, from 1, divides by this; none: val_check_interval counts through all epochs",
      "FitLoop.ValidationRunsAsOftenAsAsked");
  made.add(MUSTER_FIELD(default_root_dir), "folder of checkpoints and logs",
           "FitLoop.BoringModelTrainsValidatesTestsAndPredicts");
  made.add(MUSTER_FIELD(detect_anomaly), "backward names the operator that made a gradient NaN; slow",
           "FitLoopOptions.AnAnomalyIsFoundInBackward");
  made.add(MUSTER_FIELD(enable_checkpointing), "add a ModelCheckpoint if the program has none",
           "FitLoop.AFastRunTakesFewBatchesAndWritesNothing");
  made.add(MUSTER_FIELD(enable_model_summary), "add a ModelSummary if the program has none",
           "ModelSummary.TheTrainerAddsOneUnlessItIsOff");
  made.add(MUSTER_FIELD(enable_progress_bar), "add a TrainerProgressBar if the program has none",
           "TrainerProgressBar.TheTrainerAddsOneUnlessToldOtherwise");
  made.add(MUSTER_FIELD(fast_dev_run), "so many batches of every kind, one epoch, nothing written; 0: off",
           "FitLoop.AFastRunTakesFewBatchesAndWritesNothing");
  take_booleans(made.options.back());
  made.add(MUSTER_FIELD(gradient_clip_algorithm), "clip the norm of all gradients, or each value",
           "Optimization.GradientsAreClippedBeforeTheStep");
  made.add(MUSTER_FIELD(gradient_clip_val), "clip gradients to this; none: do not clip",
           "Optimization.GradientsAreClippedBeforeTheStep");
  made.add(MUSTER_FIELD(inference_mode), "validate(), test() and predict() of one rank run in inference mode",
           "FitLoopOptions.EvaluationRunsInInferenceModeOutsideOfFit");
  made.add(MUSTER_FIELD(log_every_n_steps), "batches between two rows of values of a step; 0: none",
           "ExperimentLog.ZeroLogsNoStep");
  made.add(MUSTER_FIELD(logger), "what log() writes to, and where", "ExperimentLog.RowsHaveTheStepsOfLightning");
}

void add_limits(Made& made) {
  const auto limit = [&](const char* name, auto get, const std::string& of) {
    made.add(name, get, "batches of " + of + " at most, or a part of them; 0: leave it out",
             "FitLoopOptions.EachStageHasALimit");
  };
  limit(MUSTER_FIELD(limit_predict_batches), "predict()");
  limit(MUSTER_FIELD(limit_test_batches), "test()");
  limit(MUSTER_FIELD(limit_train_batches), "an epoch of training");
  limit(MUSTER_FIELD(limit_val_batches), "validation");
  made.add(MUSTER_FIELD(max_epochs),
           "epochs of training; none: 1000 unless max_steps or max_time is given; -1: no limit",
           "FitLoop.StepsEndWithinAnEpochAndAgainIsDoneAtOnce");
  made.add(MUSTER_FIELD(max_steps), "updates of all optimizers; -1: no limit",
           "FitLoop.StepsEndWithinAnEpochAndAgainIsDoneAtOnce");
  made.add(MUSTER_FIELD(max_time), "training ends after so much time, that before resuming included",
           "FitLoopOptions.TimeEndsTrainingAfterTheBatchAndTheMinima");
  made.add(MUSTER_FIELD(min_epochs), "a stop waits for so many epochs",
           "FitLoop.AStopWaitsForTheMinimaAndValidatesFirst");
  made.add(MUSTER_FIELD(min_steps), "a stop waits for so many updates",
           "FitLoop.AStopWaitsForTheMinimaAndValidatesFirst");
  made.add(MUSTER_FIELD(num_sanity_val_steps), "validation batches before training; -1: all",
           "FitLoop.TheSanityCheckTakesAsManyBatchesAsAsked");
  made.add(MUSTER_FIELD(overfit_batches),
           "train and validate on these batches only, in the order of the data; 0.0: off",
           "FitLoopOptions.OverfittingTakesTheSameBatchesInOrder");
  made.add(MUSTER_FIELD(reload_dataloaders_every_n_epochs), "make the loaders again every so many epochs; 0: once",
           "FitLoop.LoadersAreMadeAnewAsOftenAsAsked");
  made.add(MUSTER_FIELD(requeue), "called after SIGUSR1, with the checkpoint that was saved",
           "Termination.SIGUSR1QueuesTheJobAgainAndOwnHandlersRun");
  made.add(MUSTER_FIELD(sync_batchnorm), "batch normalization uses statistics of all ranks",
           "FitLoopOptions.BatchNormalizationUsesAllRanks");
  made.add(MUSTER_FIELD(val_check_interval),
           "when to validate: after batches, a part of an epoch, or a time since the last validation",
           "FitLoop.ValidationRunsAsOftenAsAsked");
}

}  // namespace

const options::Table<TrainerOptions>& option_table() {
  static const options::Table<TrainerOptions> table = [] {
    Made made{.prefix = "trainer."};
    add_loops_and_logging(made);
    add_limits(made);
    for (auto& [description, read, write] : made.options) {
      // Lightning's environment variable for an argument of its Trainer.
      if (!description.code_only) description.other_tools = {"PL_TRAINER_" + upper_case(description.name)};
      description.name = made.prefix + description.name;
    }
    return std::move(made).table();
  }();
  return table;
}

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

void check_values(Problems& problems, const TrainerOptions& options) {
  const auto check_limit = [&](const char* name, const BatchLimit& limit) {
    if (limit.count()) return problems.least(name, *limit.count(), 0);
    problems.add_if(
        !(*limit.part() >= 0 && *limit.part() <= 1),
        formatted("{} is {}; a part is between 0.0 and 1.0, a number of batches a whole number", name, *limit.part()));
  };
  const auto check_time = [&](const char* name, const TimeSpan& time) {
    problems.add_if(time && *time.value() < std::chrono::milliseconds(0), std::string(name) + " is negative");
  };
  problems.least("accumulate_grad_batches", options.accumulate_grad_batches, 1);
  problems.add_if(std::ranges::any_of(options.callbacks, [](const auto& callback) { return !callback; }),
                  "callbacks holds an empty pointer");
  problems.least("check_val_every_n_epoch", options.check_val_every_n_epoch, 1);
  problems.least("fast_dev_run", options.fast_dev_run, 0);
  problems.add_if(options.gradient_clip_val && !std::isfinite(*options.gradient_clip_val),
                  "gradient_clip_val is not finite");
  check_limit("limit_predict_batches", options.limit_predict_batches);
  check_limit("limit_test_batches", options.limit_test_batches);
  check_limit("limit_train_batches", options.limit_train_batches);
  check_limit("limit_val_batches", options.limit_val_batches);
  problems.least("log_every_n_steps", options.log_every_n_steps, 0);
  problems.least("max_epochs", options.max_epochs, -1);
  problems.least("max_steps", options.max_steps, -1);
  check_time("max_time", options.max_time);
  problems.least("min_epochs", options.min_epochs, 0);
  problems.least("min_steps", options.min_steps, 0);
  problems.least("num_sanity_val_steps", options.num_sanity_val_steps, -1);
  check_limit("overfit_batches", options.overfit_batches);
  problems.least("reload_dataloaders_every_n_epochs", options.reload_dataloaders_every_n_epochs, 0);
  check_time("val_check_interval", options.val_check_interval.time());
  check_limit("val_check_interval", options.val_check_interval);
  problems.add_if(options.val_check_interval.none(),
                  "val_check_interval is 0; give at least 1, or limit_val_batches = 0 for no validation");
}

void check_pairs(Problems& problems, const TrainerOptions& options,
                 const std::function<bool(const std::string&)>& asks) {
  const auto contradiction = [&](std::initializer_list<const char*> names, bool wrong, std::string text) {
    problems.add_if(wrong && std::ranges::all_of(names, asks), std::move(text));
  };
  contradiction({"barebones", "detect_anomaly"}, options.barebones && options.detect_anomaly,
                "barebones and detect_anomaly are both on");
  contradiction({"barebones", "fast_dev_run"}, options.barebones && options.fast_dev_run > 0,
                "barebones and fast_dev_run are both on");
  contradiction({"barebones", "num_sanity_val_steps"},
                options.barebones && options.num_sanity_val_steps != 0 &&
                    options.num_sanity_val_steps != TrainerOptions().num_sanity_val_steps,
                formatted("barebones is on, and num_sanity_val_steps is {}", options.num_sanity_val_steps));
  contradiction(
      {"check_val_every_n_epoch", "val_check_interval"},
      !options.check_val_every_n_epoch && options.val_check_interval.part() && !options.val_check_interval.time(),
      "check_val_every_n_epoch is unset, so val_check_interval counts batches; give a whole number");
  contradiction({"fast_dev_run", "overfit_batches"}, options.fast_dev_run > 0 && !options.overfit_batches.none(),
                "fast_dev_run and overfit_batches both say how many batches there are");
  contradiction({"max_epochs", "min_epochs"},
                options.max_epochs && *options.max_epochs >= 0 && options.min_epochs > options.max_epochs,
                "min_epochs is greater than max_epochs");
  contradiction({"max_steps", "min_steps"}, options.max_steps >= 0 && options.min_steps > options.max_steps,
                "min_steps is greater than max_steps");
}

}  // namespace

void Problems::least(const char* name, std::optional<int64_t> value, int64_t least) {
  if (value && *value < least) all.push_back(formatted("{} is {}; give at least {}", name, *value, least));
}

std::vector<std::string> problems_of(const TrainerOptions& options,
                                     const std::function<bool(const std::string&)>& asks) {
  Problems problems;
  check_values(problems, options);
  check_pairs(problems, options, asks);
  return std::move(problems.all);
}

void raise(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw ConfigError("MU440", "the Trainer's options do not work: " + joined(problems, {}, kMostListed) +
                                 ". Change each of them; nothing has run yet");
}

void raise_for(std::string_view callback, const Problems& problems) {
  if (!problems.all.empty())
    throw ConfigError("MU451", "the options of " + std::string(callback) + " do not work: " + joined(problems.all));
}

}  // namespace muster::trainer
