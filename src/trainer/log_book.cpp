#include "log_book.h"

#include <cmath>

#include <torch/types.h>

#include "base/text.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/tree/detail/named_fields.h"
#include "runtime/sum_dtype.h"

namespace muster::trainer {
namespace {

constexpr LogReduction kMean = "mean", kSum = "sum", kMin = "min";

/// The result of a reduction over no values.
double neutral(LogReduction how) {
  if (how == kMean || how == kSum) return 0;
  return how == kMin ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

comm::ReduceOp op_of(LogReduction how) {
  if (how == kMean || how == kSum) return comm::ReduceOp::sum;
  return how == kMin ? comm::ReduceOp::min : comm::ReduceOp::max;
}

double combined(double a, double b, LogReduction how) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return how == kMin ? std::min(a, b) : std::max(a, b);
}

/// The batch size may change from batch to batch.
bool equal(const LogOptions& a, LogOptions b) {
  b.batch_size = a.batch_size;
  return a == b;
}

/// Adds a value and its weight. For minima and maxima, which skip NaN, NaN is sent as the weight.
void add_to(comm::CoalescedAllReduce& round, double value, double weight, LogReduction how) {
  const bool lost = std::isnan(value) && how != kMean && how != kSum;
  round.add(lost ? neutral(how) : value, op_of(how));
  round.add(lost ? value : weight, comm::ReduceOp::sum);
}

std::pair<double, double> result_of(const comm::CoalescedAllReduce& round, std::size_t at) {
  const double value = round.result(at), weight = round.result(at + 1);
  return std::isnan(weight) ? std::pair(weight, 1.0) : std::pair(value, weight);
}

/// Which levels (step, epoch) a call of log() has. Throws: UsageError (MU441).
std::pair<bool, bool> levels(std::string_view name, Hook hook, const LogOptions& options) {
  const auto level = info(hook).log;
  if (level == LogLevel::none)
    throw UsageError("MU441",
                     log_in_hook(name, hook) +
                         ": nothing can be logged there; log in a step, or in a hook at the start or end of an "
                         "epoch or batch");
  const bool step = options.on_step.value_or(level == LogLevel::step);
  const bool epoch = options.on_epoch.value_or(level != LogLevel::step);
  if (step && level == LogLevel::epoch_only)
    throw UsageError("MU441", log_in_hook(name, hook) + ": this hook belongs to no batch; leave out on_step");
  if (!step && !epoch)
    throw UsageError("MU441", log_in_hook(name, hook) + ": on_step and on_epoch are both false; leave one of them out");
  return {step, epoch};
}

at::Tensor reduced_on_device(const at::Tensor& value, bool counts, LogReduction how, const comm::Communicator& group) {
  const auto messages = group.internal("a logged value");
  const auto own = counts ? value : at::full_like(value, neutral(how));
  if (how != kMean && how != kSum) {
    const auto all = messages.all_gather(own);  // not every backend's minimum keeps NaN
    return how == kMin ? all.amin() : all.amax();
  }
  const auto sums = at::stack({own, at::full_like(own, counts ? 1 : 0)});
  messages.all_reduce(sums);
  return how == kMean ? sums[0] / sums[1] : sums[0];
}

}  // namespace

std::string log_in_hook(std::string_view name, Hook hook, std::string_view metric) {
  return "log(\"" + std::string(name) + "\"" + std::string(metric) + ") in " + std::string(info(hook).name);
}

// Only values on the host are read here, each by a call of LibTorch's dispatcher.
LoggedNumber::LoggedNumber(const at::Tensor& value) {
  if (value.device().is_cpu()) number_ = value.item<double>();
  else late_ = value.detach().clone();  // cloned, since it is read later and may be changed in place before
}

double LoggedNumber::get() const { return ready() ? number_ : late_.item<double>(); }

at::Tensor LoggedNumber::tensor() const {
  return ready() ? at::scalar_tensor(number_, at::kDouble) : late_.to(runtime::sum_dtype(late_.device())).reshape({});
}

void LoggedNumber::add(const LoggedNumber& value, double weight) {
  if (!value.ready()) {
    const auto weighted = value.tensor() * weight;
    late_ = ready() ? weighted + std::exchange(number_, 0) : late_ + weighted;
  } else if (ready()) {
    number_ += value.number() * weight;
  } else {
    late_ = late_ + value.number() * weight;
  }
}

void LoggedNumber::extend(const LoggedNumber& value, bool largest) {
  if (ready() && value.ready()) {
    number_ = combined(number_, value.number(), largest ? LogReduction("max") : kMin);
    return;
  }
  const auto one = value.ready() ? at::full_like(late_, value.number()) : value.tensor();
  if (ready()) late_ = at::full_like(one, std::exchange(number_, 0));
  late_ = largest ? at::maximum(late_, one) : at::minimum(late_, one);
}

LoggedNumber LoggedNumber::over(double divisor) const {
  // Divides by a tensor to get the host's bits: a device may replace a number by its reciprocal.
  return ready() ? LoggedNumber(number_ / divisor) : LoggedNumber(late_ / at::full_like(late_, divisor));
}

void LatestMetrics::set(const std::string& name, const LoggedNumber& value) {
  if (value.ready()) set(name, value.number());
  else pending_[name] = value;
}

const Metrics& LatestMetrics::get() const {
  for (const auto& [name, value] : pending_) numbers_[name] = value.get();
  pending_.clear();
  return numbers_;
}

LoggedNumber LatestMetrics::late(const std::string& name) const {
  const auto found = pending_.find(name);
  return found == pending_.end() ? LoggedNumber(numbers_.at(name)) : found->second;
}

Metrics LatestMetrics::shown() const {
  Metrics values;
  for (const auto& name : shown_)
    if (const auto found = numbers_.find(name); found != numbers_.end()) values.insert(*found);
  return values;
}

LogBook::Entry& LogBook::entry_of(const LogContext& context, std::string_view name, const LogOptions& options) {
  Key key{context.hook, context.loader, std::string(name)};
  if (const auto found = entries_.find(key); found != entries_.end()) {
    if (!equal(found->second.options, options))
      throw UsageError("MU442", log_in_hook(name, context.hook) +
                                    ": this name was logged with other options before; give the same ones each time, "
                                    "or another name");
    return found->second;
  }
  if (name.find("/dataloader_idx_") != name.npos)
    throw UsageError("MU442", log_in_hook(name, context.hook) +
                                  ": the end \"/dataloader_idx_N\" is added to names by the Trainer where there are "
                                  "several loaders; choose another name");
  const auto [step, epoch] = levels(name, context.hook, options);
  Entry entry{.options = options,
              .step = step,
              .epoch = epoch,
              .of_step = nothing(options.reduce_fx),
              .of_epoch = nothing(options.reduce_fx),
              .loader = context.loader};
  const auto end = context.loader >= 0 && options.add_dataloader_idx
                       ? "/dataloader_idx_" + std::to_string(context.loader)
                       : std::string();
  const bool forked = step && epoch;
  entry.plain = std::string(name) + end;
  entry.on_step = std::string(name) + (forked ? "_step" : "") + end;
  entry.on_epoch = std::string(name) + (forked ? "_epoch" : "") + end;
  if (options.prog_bar && step) latest_->show(entry.on_step);
  if (options.prog_bar && epoch) latest_->show(entry.on_epoch);
  return entries_.emplace(std::move(key), std::move(entry)).first->second;
}

LogBook::Sum LogBook::nothing(LogReduction how) { return {LoggedNumber(neutral(how))}; }

void LogBook::add(Sum& sum, const LoggedNumber& value, double weight, LogReduction how) {
  if (how == kMean && weight == 0) return;  // the mean of no samples may be NaN
  if (how == kMean) sum.value.add(value, weight);
  else if (how == kSum) sum.value.add(value);
  else sum.value.extend(value, how != kMin);
  sum.weight += how == kMean ? weight : 1;
}

LoggedNumber LogBook::result(const Sum& sum, LogReduction how) { return sum.value.over(how == kMean ? sum.weight : 1); }

LoggedNumber LogBook::of_ranks(const LogContext& context, const LoggedNumber& number, LogReduction how,
                               const comm::Communicator& group) {
  if (!number.ready()) return LoggedNumber(reduced_on_device(number.tensor(), !context.filler, how, group));
  comm::CoalescedAllReduce round(group, "a logged value");
  add_to(round, context.filler ? neutral(how) : number.number(), context.filler ? 0 : 1, how);
  round.run();
  const auto [value, ranks] = result_of(round, 0);
  return LoggedNumber(how == kMean ? value / ranks : value);
}

void LogBook::log(const LogContext& context, std::string_view name, const at::Tensor& value, const LogOptions& options,
                  const comm::Communicator& group) {
  if (!value.defined() || value.numel() != 1)
    throw UsageError("MU442", log_in_hook(name, context.hook) + ": the tensor has " +
                                  (value.defined() ? std::to_string(value.numel()) + " elements" : "no value") +
                                  "; log one number, such as its mean()");
  keep(context, name, options, group, [&] { return LoggedNumber(value); });
}

void LogBook::keep(const LogContext& context, std::string_view name, const LogOptions& options,
                   const comm::Communicator& group, c10::function_ref<LoggedNumber()> read) {
  if (options.batch_size.value_or(0) < 0)
    throw UsageError("MU442", log_in_hook(name, context.hook) + ": batch_size is " +
                                  std::to_string(*options.batch_size) +
                                  "; give the number of samples that the value stands for");
  if (options.rank_zero_only && group.rank() != 0) return;
  const bool synced = options.sync_dist.value_or(false) && !options.rank_zero_only && group.size() > 1;
  if (context.filler) {
    if (synced && levels(name, context.hook, options).first) of_ranks(context, read(), options.reduce_fx, group);
    return;
  }
  auto& entry = entry_of(context, name, options);
  auto number = read();
  const auto weight = static_cast<double>(options.batch_size.value_or(context.batch_size));
  if (entry.epoch) add(entry.of_epoch, number, weight, options.reduce_fx);
  if (!entry.step) return;
  if (synced) number = of_ranks(context, number, options.reduce_fx, group);
  if (std::exchange(entry.last_step, context.step) != context.step) entry.of_step = nothing(options.reduce_fx);
  entry.fresh = true;
  const bool again = entry.of_step.weight > 0;
  add(entry.of_step, number, weight, options.reduce_fx);
  const auto shown = again ? result(entry.of_step, options.reduce_fx) : number;
  latest_->set(entry.on_step, shown);
  if (entry.plain != entry.on_step) latest_->set(entry.plain, shown);
}

LogBook::Shared LogBook::shared_entries() {
  Shared mine;
  for (auto& [key, entry] : entries_) {
    if (!entry.epoch || !entry.options.sync_dist.value_or(true) || entry.options.rank_zero_only) continue;
    mine.emplace(std::string(entry.options.reduce_fx.text()) + '\n' + std::string(info(std::get<Hook>(key)).name) +
                     '\n' + std::to_string(entry.loader) + '\n' + entry.on_epoch + '\n' + entry.plain,
                 &entry);
  }
  return mine;
}

/// Returns whether some rank has a name that is not agreed on. A name that this rank lacks has weight 0.
bool LogBook::exchange(const comm::Communicator& group, const Shared& mine) {
  const auto known = [&](const auto& one) { return std::ranges::binary_search(agreed_, one.first); };
  comm::CoalescedAllReduce round(group, "the metrics of an epoch");
  round.add(!std::ranges::all_of(mine, known), comm::ReduceOp::max);
  for (const auto& name : agreed_) {
    const auto found = mine.find(name);
    const auto how = LogReduction::parse(name.substr(0, name.find('\n'))).value_or(kMean);
    const bool known_here = found != mine.end();
    add_to(round, known_here ? found->second->of_epoch.value.get() : neutral(how),
           known_here ? found->second->of_epoch.weight : 0, how);
  }
  round.run();
  if (round.result(0) > 0) return true;
  for (std::size_t i = 0; i < agreed_.size(); ++i) {
    const auto [value, weight] = result_of(round, 1 + 2 * i);
    const auto found = mine.find(agreed_[i]);
    if (found != mine.end()) found->second->of_epoch = {LoggedNumber(value), weight};
    else if (weight > 0) keep_foreign(agreed_[i], value, weight);
  }
  return false;
}

/// Keeps a value that only other ranks logged.
void LogBook::keep_foreign(const std::string& key, double value, double weight) {
  const auto parts = split_text(key, '\n');
  if (LogReduction::parse(parts.at(0)) == kMean) value /= weight;
  results_[{std::stoll(parts.at(2)), parts.at(3)}] = value;
  epoch_values_[parts.at(3)] = value;
  for (const auto& name : {parts.at(3), parts.at(4)}) latest_->set(name, value);
}

/// Reduces an epoch in one message. If a rank has a new name, ranks first agree on the names.
void LogBook::reduce(const comm::Communicator& group) {
  comm::require_same_device_operations(group);  // values are read next
  const auto mine = shared_entries();
  if (!exchange(group, mine)) return;
  std::string text;
  for (const auto& [name, _] : mine) text += name + '\0';
  for (const auto& of_rank : comm::all_gather_result(group, "the names of metrics", [&] { return text; }))
    std::ranges::copy(split_text(of_rank, '\0'), std::back_inserter(agreed_));
  std::ranges::sort(agreed_);
  agreed_.erase(std::ranges::unique(agreed_).begin(), agreed_.end());
  exchange(group, mine);
}

void LogBook::close(const comm::Communicator& group) {
  if (group.size() > 1) reduce(group);
  for (const auto& metric : metrics_.close(group)) {
    results_[{metric.loader, metric.name}] = metric.value;
    latest_->set(metric.name, metric.value);
    if (metric.logger) epoch_values_[metric.name] = metric.value;
    if (metric.prog_bar) latest_->show(metric.name);
  }
  for (auto& [key, entry] : entries_) {
    if (!entry.epoch || entry.of_epoch.weight == 0) continue;
    const double value = result(entry.of_epoch, entry.options.reduce_fx).get();
    results_[{entry.loader, entry.on_epoch}] = value;
    latest_->set(entry.on_epoch, value);
    latest_->set(entry.plain, value);
    if (entry.options.logger) epoch_values_[entry.on_epoch] = value;
  }
  // Keep step values that wait for the next row of the logger.
  std::erase_if(entries_, [](const auto& one) { return !one.second.fresh || !one.second.options.logger; });
  for (auto& [key, entry] : entries_) entry.of_epoch = nothing(entry.options.reduce_fx);
}

LateValues LogBook::take_step_values() {
  LateValues values;
  for (auto& [key, entry] : entries_)
    if (std::exchange(entry.fresh, false) && entry.options.logger)
      values.emplace_back(entry.on_step, latest_->late(entry.on_step));
  return values;
}

std::vector<Metrics> LogBook::results(std::size_t loaders) const {
  std::vector<Metrics> all(loaders);
  for (std::size_t i = 0; i < loaders; ++i)
    for (const auto& [key, value] : results_)
      if (key.first < 0 || key.first == static_cast<int64_t>(i)) all[i][key.second] = value;
  return all;
}

namespace {

/// Calls visit(name, field) for the options that a checkpoint has.
void visit_fields(auto& options, const auto& visit) {
  visit("add_dataloader_idx", options.add_dataloader_idx);
  visit("logger", options.logger);
  visit("on_epoch", options.on_epoch);
  visit("on_step", options.on_step);
  visit("prog_bar", options.prog_bar);
  visit("rank_zero_only", options.rank_zero_only);
  visit("reduce_fx", options.reduce_fx);
  visit("sync_dist", options.sync_dist);
}

State options_state(const LogOptions& options) {
  State state;
  visit_fields(options, [&](const char* name, const auto& field) {
    if constexpr (requires { field.text(); }) state.set(name, field.text());
    else state.set(name, tree::state_of(field));
  });
  return state;
}

LogOptions options_from(const State& state) {
  LogOptions options;
  visit_fields(options, [&](const char* name, auto& field) {
    if constexpr (requires { field.text(); }) field = LogReduction::parse(state.at(name).text()).value_or(field);
    else tree::load_fields(field, state.at(name));
  });
  return options;
}

std::optional<Hook> hook_named(const std::string& name) {
  const auto found = std::ranges::find(kHooks, name, &HookInfo::name);
  return found == kHooks.end() ? std::nullopt : std::optional(static_cast<Hook>(found - kHooks.begin()));
}

}  // namespace

State LatestMetrics::state_dict() const {
  State state = State::Map{};
  for (const auto& [name, value] : get()) state.set(name, value);
  return state;
}

void LatestMetrics::load_state_dict(const State& state) {
  clear();
  for (const auto& [name, value] : state.map()) set(name, value.number());
}

State LogBook::state_dict() const {
  State::List entries;
  for (const auto& [key, entry] : entries_)
    if (const double weight = entry.of_epoch.weight; weight > 0 || entry.fresh)
      entries.emplace_back(State::Map{{"fresh", entry.fresh},
                                      {"hook", info(std::get<Hook>(key)).name},
                                      {"loader", entry.loader},
                                      {"name", std::get<std::string>(key)},
                                      {"options", options_state(entry.options)},
                                      {"value", weight > 0 ? entry.of_epoch.value.get() : 0},
                                      {"weight", weight}});
  return entries;
}

State LogBook::waiting_state() const {
  State state;
  for (const auto& [name, value] : epoch_values_) state.set(name, value);
  return state;
}

void LogBook::load_waiting_state(const State& state) {
  for (const auto& [name, value] : state.map()) epoch_values_[name] = value.number();
}

LogBook LogBook::snapshot() const {
  auto book = *this;
  book.metrics_ = metrics_.snapshot();
  return book;
}

void LogBook::add_state_dict(const State& state, bool own) {
  for (const auto& saved : state.list()) {
    const auto hook = hook_named(saved.at("hook").text());
    if (!hook) continue;
    const auto options = options_from(saved.at("options"));
    auto& entry = entry_of({.hook = *hook, .loader = saved.at("loader").integer()}, saved.at("name").text(), options);
    if (const auto* fresh = saved.find("fresh"); fresh && own) entry.fresh = entry.fresh || fresh->boolean();
    const double value = saved.at("value").number(), weight = saved.at("weight").number();
    if (weight == 0) continue;
    const bool adds = options.reduce_fx == kMean || options.reduce_fx == kSum;
    if (adds) entry.of_epoch.value.add(LoggedNumber(value));
    else entry.of_epoch.value.extend(LoggedNumber(value), options.reduce_fx != kMin);
    entry.of_epoch.weight += weight;
  }
}

}  // namespace muster::trainer
