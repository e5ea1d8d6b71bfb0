#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "log_book.h"
#include "muster/tree/state.h"

namespace muster::trainer {
namespace {

State flag_state(const std::optional<bool>& flag) { return flag ? State(*flag) : State(); }
std::optional<bool> flag_from(const State& state) {
  return state.empty() ? std::nullopt : std::optional(state.boolean());
}

State options_state(const LogOptions& options) {
  return State::Map{{"add_dataloader_idx", options.add_dataloader_idx},
                    {"logger", options.logger},
                    {"on_epoch", flag_state(options.on_epoch)},
                    {"on_step", flag_state(options.on_step)},
                    {"prog_bar", options.prog_bar},
                    {"rank_zero_only", options.rank_zero_only},
                    {"reduce_fx", options.reduce_fx.text()},
                    {"sync_dist", flag_state(options.sync_dist)}};
}

LogOptions options_from(const State& state) {
  LogOptions options{.add_dataloader_idx = state.at("add_dataloader_idx").boolean(),
                     .logger = state.at("logger").boolean(),
                     .on_epoch = flag_from(state.at("on_epoch")),
                     .on_step = flag_from(state.at("on_step")),
                     .prog_bar = state.at("prog_bar").boolean(),
                     .rank_zero_only = state.at("rank_zero_only").boolean(),
                     .sync_dist = flag_from(state.at("sync_dist"))};
  options.reduce_fx = LogReduction::parse(state.at("reduce_fx").text()).value_or(options.reduce_fx);
  return options;
}

std::optional<Hook> hook_named(const std::string& name) {
  const auto found = std::ranges::find(kHooks, name, &HookInfo::name);
  return found == kHooks.end() ? std::nullopt : std::optional(found->hook);
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
  for (const auto& [name, value] : epoch_values_) {
    if (state.empty()) state = State::Map{};
    state.set(name, value);
  }
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
    const bool adds = options.reduce_fx == LogReduction("mean") || options.reduce_fx == LogReduction("sum");
    if (adds) entry.of_epoch.value.add(value);
    else entry.of_epoch.value.extend(LoggedNumber(value), options.reduce_fx == LogReduction("max"));
    entry.of_epoch.weight += weight;
  }
}

}  // namespace muster::trainer
