#include "run_log.h"

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/runtime/init_trackers.h"
#include "run.h"

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

/// Throws: UsageError (MU434) if a module and its data module have different values for one hyper-parameter, or values
/// that cannot be logged.
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

RunLog::RunLog(const Run& run) : run_(run) {
  if (run.options.fast_dev_run == 0) experiment.open(run.runtime, run.options);
}

void RunLog::begin() {
  training.begin();
  evaluation.begin();
  context_.evaluates = context_.filler = false;
}

void RunLog::reset_metrics() {
  training.metrics().reset();
  evaluation.metrics().reset();
}

bool RunLog::begin_log() {
  context_.hook = run_.hooks.current();
  if (run_.options.barebones && !std::exchange(warned_barebones_, true) && run_.runtime.is_main())
    log::warning("barebones is on: what is logged is left out");
  return !run_.options.barebones;
}

void RunLog::log(std::string_view name, const at::Tensor& value, const LogOptions& how) {
  if (begin_log()) book().log(context_, name, value, how, run_.runtime.group());
}

void RunLog::log(std::string_view name, double value, const LogOptions& how) {
  if (begin_log()) book().log(context_, name, value, how, run_.runtime.group());
}

void RunLog::log(std::string_view name, Metric& metric, const LogOptions& how) {
  if (begin_log()) book().metrics().add(context_, name, metric, how);
}

void RunLog::begin_training_batch(int64_t batch_size) {
  context_ = {.batch_size = batch_size, .loader = -1, .step = context_.step + 1};
}

LogContext RunLog::begin_evaluation() { return std::exchange(context_, {.evaluates = true}); }

void RunLog::begin_evaluation_batch(int64_t loader, bool filler) {
  context_.loader = loader;
  ++context_.step;
  context_.filler = filler;
}

void RunLog::end_batches() { context_ = {.step = context_.step + 1, .evaluates = context_.evaluates}; }

void RunLog::close(LogBook& book) { book.close(run_.runtime.group()); }

void RunLog::log_hyperparameters() {
  const auto& inputs = run_.inputs();
  const auto& of_module = inputs.module->hyperparameters();
  const auto of_data = inputs.data ? inputs.data->hyperparameters() : State();
  check_hyperparameters(of_module, of_data);
  experiment.log_hyperparams(of_module);
  experiment.log_hyperparams(of_data);
}

void RunLog::warn_log_every_n_steps(std::optional<int64_t> batches) const {
  const auto every = run_.options.log_every_n_steps;
  if (!experiment.active() || !run_.runtime.is_main() || !batches || *batches >= every) return;
  log::warning("an epoch has ", *batches, " batches, and log_every_n_steps is ", every,
               ": most of what log() gets in a step is not written; set it to a smaller number");
}

bool RunLog::logs_this_step() const noexcept {
  const auto& options = run_.options;
  return experiment.due(run_.stop.requested()) || (options.fast_dev_run > 0 && options.log_every_n_steps > 0);
}

void RunLog::log_training_step() {
  if (!run_.runtime.is_main() || !logs_this_step()) return;
  if (latest.shows_any()) latest.get();
  if (!experiment.active()) return;
  Metrics values;
  for (const auto& [name, value] : training.take_step_values()) values[name] = value.get();
  if (!values.empty()) experiment.log(std::move(values), experiment.step(), run_.progress.epoch);
}

void RunLog::log_epoch(LogBook& book, int64_t step) {
  auto values = book.take_epoch_values();
  if (run_.sanity_checking()) return;
  experiment.read_waiting();
  if (experiment.active() && run_.runtime.is_main() && !values.empty())
    experiment.log(std::move(values), step, run_.progress.epoch);
}

void RunLog::log_evaluation_step(StepKind kind, int64_t loader) {
  if (run_.sanity_checking() || !experiment.active()) return;
  // Validation inside fit() and validate() have separate counts.
  const auto key = static_cast<std::size_t>(run_.is_fit() ? StepKind::training : kind);
  experiment.log_evaluation_step(key, loader, evaluation.take_step_values());
}

State RunLog::state_of_rank() {
  const auto& group = run_.runtime.group();
  State state = State::Map{
      {"evaluation", evaluation.state_dict()}, {"metrics", latest.state_dict()}, {"training", training.state_dict()}};
  if (auto waiting = evaluation.waiting_state(); !waiting.empty()) state.set("evaluation_row", waiting);
  if (auto waiting = training.waiting_state(); !waiting.empty()) state.set("training_row", waiting);
  // After the last batch of an epoch no batch logs its metric objects again; a validation may be near its end, too.
  state.set("evaluation_objects", evaluation.metrics().state_dict(group, /*values=*/true));
  state.set("metric_objects", training.metrics().state_dict(group, run_.progress.last_batch));
  return state;
}

const State& RunLog::load_states_of_ranks(const State::List& all, bool restarts_window) {
  const auto rank = static_cast<std::size_t>(run_.runtime.rank());
  const auto world = static_cast<std::size_t>(run_.runtime.world_size());
  const auto of = [&](std::size_t r) -> const State& { return all[r].empty() ? all[0] : all[r]; };
  const auto& own = of(rank < all.size() ? rank : 0);
  latest.load_state_dict(own.at("metrics"));
  training.begin();
  evaluation.begin();
  if (const auto* row = own.find("evaluation_row")) evaluation.load_waiting_state(*row);
  if (const auto* row = own.find("training_row")) training.load_waiting_state(*row);
  // On another number of ranks, rank 0 takes what all ranks had logged.
  const std::size_t first = all.size() == world ? rank : 0;
  const std::size_t end = all.size() == world ? rank + 1 : rank == 0 ? all.size() : 0;
  for (std::size_t r = first; r < end; ++r) {
    const auto* window = restarts_window ? of(r).find("window") : nullptr;
    const auto& from = window ? *window : of(r);
    training.add_state_dict(from.at("training"), r == rank);
    if (const auto* objects = from.find("metric_objects")) training.metrics().add_state_dict(*objects);
    if (restarts_window) continue;  // a validation in the window is begun again, too
    evaluation.add_state_dict(of(r).at("evaluation"), r == rank);
    if (const auto* objects = of(r).find("evaluation_objects")) evaluation.metrics().add_state_dict(*objects);
  }
  return own;
}

}  // namespace muster::trainer
