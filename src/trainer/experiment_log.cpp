#include "experiment_log.h"

#include <algorithm>
#include <variant>

#include "muster/base/error.h"
#include "muster/runtime/init_trackers.h"

namespace muster::trainer {
namespace {

using Kind = State::Kind;

/// Booleans, numbers and texts of a state, by path.
using Leaves = std::vector<std::pair<std::string, const State*>>;

void collect(const State& state, const std::string& path, Leaves& leaves) {
  const auto below = [&](const std::string& name) { return path.empty() ? name : path + "/" + name; };
  if (state.kind() == Kind::map) {
    for (const auto& [name, part] : state.map()) collect(part, below(name), leaves);
  } else if (state.kind() == Kind::list) {
    for (std::size_t i = 0; i < state.list().size(); ++i) collect(state.list()[i], below(std::to_string(i)), leaves);
  } else if (state.kind() == Kind::tensor || path.empty()) {
    throw UsageError("MU434", "save_hyperparameters() got " + std::string(name_of(state.kind())) +
                                  (path.empty() ? "" : " as \"" + path + "\"") +
                                  "; give it named bools, numbers and texts, or lists and maps of them");
  } else if (!state.empty()) {
    leaves.emplace_back(path, &state);
  }
}

LoggedValue logged_value(const std::string& name, const State& value) {
  switch (value.kind()) {
    case Kind::boolean: return {name, value.boolean()};
    case Kind::integer: return {name, value.integer()};
    case Kind::number: return {name, value.number()};
    default: return {name, std::string_view(value.text())};
  }
}

std::string shown(const State& value) {
  switch (value.kind()) {
    case Kind::boolean: return value.boolean() ? "true" : "false";
    case Kind::integer: return std::to_string(value.integer());
    case Kind::number: return std::to_string(value.number());
    default: return value.text();
  }
}

}  // namespace

ExperimentLog::~ExperimentLog() {
  if (status_ == RunStatus::failed) trackers_.finish(status_);  // otherwise the trackers finish by themselves
}

void ExperimentLog::open(const Runtime& runtime, const TrainerOptions& options) {
  main_ = runtime.is_main();
  every_ = options.log_every_n_steps;
  if (options.logger.log_with.empty()) return;
  auto how = options.logger;
  how.root = options.default_root_dir / how.root;
  const auto name = how.name;
  trackers_ = runtime::trackers_on_main(runtime, name, std::vector<LoggedValue>(), how);
  folder_ = runtime.broadcast_object(trackers_.folder().string());
}

void ExperimentLog::log_hyperparams(const State& values) {
  if (!writes() || values.empty()) return;
  Leaves leaves;
  collect(values, {}, leaves);
  std::vector<LoggedValue> fresh;
  for (const auto& [name, value] : leaves)
    if (const auto [known, added] = hyperparams_.try_emplace(name, shown(*value));
        added || std::exchange(known->second, shown(*value)) != shown(*value))
      fresh.push_back(logged_value(name, *value));
  if (!fresh.empty()) trackers_.log_hyperparams(fresh);
}

void ExperimentLog::log(Metrics values, int64_t step, int64_t epoch) {
  if (const auto own = values.find("step"); own != values.end()) {
    step = static_cast<int64_t>(own->second);
    values.erase(own);
  } else {
    values.emplace("epoch", static_cast<double>(epoch));
  }
  log(values, step);
}

void ExperimentLog::log(const Metrics& values, int64_t step) {
  for (const auto& [name, value] : values) logged_[name] = value;
  if (writes()) trackers_.log(values, step);
}

void ExperimentLog::log_evaluation_step(std::size_t kind, int64_t loader, LateValues values) {
  const auto step = evaluated_[{kind, loader}]++;
  if (!writes() || values.empty()) return;
  const bool ready = std::ranges::all_of(values, [](const auto& value) { return value.second.ready(); });
  waiting_.push_back({step, std::move(values)});
  if (ready || std::ssize(waiting_) >= std::max<int64_t>(every_, 1)) read_waiting();
}

void ExperimentLog::read_waiting() {
  for (const auto& row : std::exchange(waiting_, {})) {
    Metrics values;
    for (const auto& [name, value] : row.values) values[name] = value.get();
    log(values, row.step);
  }
}

void ExperimentLog::end_run(RunStatus status) {
  status_ = status;
  if (status == RunStatus::success) read_waiting();
  waiting_.clear();
  trackers_.flush();
}

State ExperimentLog::state_dict() {
  read_waiting();
  State::List evaluated;
  for (const auto& [key, batches] : evaluated_)
    evaluated.emplace_back(State::List{static_cast<int64_t>(key.first), key.second, batches});
  return State::Map{{"evaluated", std::move(evaluated)}, {"steps", steps_}};
}

void ExperimentLog::load_state_dict(const State& state) {
  steps_ = state.at("steps").integer();
  evaluated_.clear();
  for (const auto& one : state.at("evaluated").list())
    evaluated_[{static_cast<std::size_t>(one.list().at(0).integer()), one.list().at(1).integer()}] =
        one.list().at(2).integer();
}

void check_hyperparameters(const State& of_module, const State& of_data) {
  Leaves own, others;
  if (!of_module.empty()) collect(of_module, {}, own);
  if (!of_data.empty()) collect(of_data, {}, others);
  for (const auto& [name, value] : others)
    for (const auto& [known, first] : own)
      if (name == known && !identical(*first, *value))
        throw UsageError("MU434", "the hyper-parameter \"" + name + "\" is " + shown(*first) + " in the module and " +
                                      shown(*value) + " in the data module; give them one value, or two names");
}

}  // namespace muster::trainer
