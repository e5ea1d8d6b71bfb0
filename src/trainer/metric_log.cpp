#include "base/text.h"
#include "log_book.h"
#include "muster/base/error.h"

namespace muster::trainer {
namespace {

/// Sort key of metrics, equal on every rank.
constexpr auto place_of = [](const auto& entry) { return std::tie(entry.loader, entry.name); };

/// Metrics that are reduced over all ranks, and metrics of this rank alone.
struct Parted {
  std::vector<Metric*> shared = {}, own = {};
  std::string label = {};
};
Parted parted(const auto& entries) {
  Parted parts;
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    (entry.shared ? parts.shared : parts.own).push_back(entry.metric);
    if (entry.shared) names.push_back(entry.name);
  }
  parts.label = "the metric objects of an epoch: " + listed(names);
  return parts;
}

}  // namespace

void MetricLog::add(const LogContext& context, std::string_view name, Metric& metric, const LogOptions& options) {
  const auto where = log_in_hook(name, context.hook, ", metric");
  if (info(context.hook).log == LogLevel::none)
    throw UsageError("MU441", where + ": nothing can be logged there; log in the step that updates the metric");
  if (options.on_step.value_or(false) || !options.on_epoch.value_or(true))
    throw UsageError("MU458", where + ": a metric object has one value per epoch; leave out on_step and on_epoch");
  const bool several = context.loader >= 0 && options.add_dataloader_idx;
  const auto full = std::string(name) + (several ? "/dataloader_idx_" + std::to_string(context.loader) : "");
  const auto found = std::ranges::find(entries_, &metric, &Entry::metric);
  if (found != entries_.end()) {
    if (found->name == full && found->loader == context.loader) return;
    throw UsageError("MU458",
                     where + ": this metric object is logged as \"" + found->name +
                         "\" in this epoch already; give each name and each loader a metric object of its own");
  }
  if (std::ranges::any_of(entries_, [&](const Entry& one) { return one.name == full && one.loader == context.loader; }))
    throw UsageError("MU458", where +
                                  ": another metric object has this name in this epoch already, and only one value "
                                  "of the name would be kept; give each its own");
  if (had_filler_ && !in_filler_)
    throw UsageError("MU458", where +
                                  ": this rank has run a batch without real samples, which may have changed the metric "
                                  "before it was known; log the metric in the step that updates it");
  const bool shared = options.sync_dist.value_or(true) && !options.rank_zero_only;
  entries_.push_back({{full, context.loader, options.logger, options.prog_bar}, &metric, shared});
  take_up(entries_.back());
}

/// Applies the saved state from a checkpoint once the metric is known.
void MetricLog::take_up(const Entry& entry) {
  const bool by_module = entry.metric->loaded();
  std::erase_if(saved_, [&](const Saved& saved) {
    if (saved.name != entry.name || saved.loader != entry.loader) return false;
    if (in_filler_) before_filler_.emplace_back(entry.metric, saved.state);
    else if (!by_module) entry.metric->add_state_dict(saved.state);
    return true;
  });
}

void MetricLog::reset() {
  for (const auto& entry : entries_) entry.metric->reset();
  clear();
}

void MetricLog::begin_filler() {
  in_filler_ = had_filler_ = true;
  for (const auto& entry : entries_) before_filler_.emplace_back(entry.metric, clone(entry.metric->state_dict()));
}

void MetricLog::end_filler() {
  in_filler_ = false;
  for (const auto& entry : entries_) entry.metric->reset();  // a new metric had no real batch before
  for (const auto& [metric, state] : before_filler_)
    metric->loaded() ? metric->add_state_dict(state) : metric->load_state_dict(state);
  before_filler_.clear();
}

std::vector<MetricValue> MetricLog::close(const comm::Communicator& group) {
  std::ranges::sort(entries_, std::less(), place_of);
  const auto [shared, own, label] = parted(entries_);
  MetricReduction::run(group, label, shared);
  MetricReduction::run_here(own);
  std::vector<MetricValue> values;
  for (const auto& saved : std::exchange(saved_, {}))
    if (saved.value) values.push_back({saved, *saved.value});
  for (const auto& entry : std::exchange(entries_, {}))
    if (const auto& value = entry.metric->value(); value.numel() == 1) values.push_back({entry, value.item<double>()});
  had_filler_ = false;
  return values;
}

std::vector<MetricLog::Saved> MetricLog::saved_entries() const {
  auto all = saved_;
  for (const auto& entry : entries_) all.push_back({entry, clone(entry.metric->state_dict())});
  return all;
}

MetricLog MetricLog::snapshot() const {
  MetricLog log;
  log.saved_ = saved_entries();
  return log;
}

State MetricLog::state_dict(const comm::Communicator& group, bool values) const {
  auto sorted = *this;
  std::ranges::sort(sorted.entries_, std::less(), place_of);
  auto all = sorted.saved_entries();
  if (values) {
    const auto [shared, own, label] = parted(sorted.entries_);
    auto of_shared = MetricReduction::values_so_far(group, label, shared);
    auto of_own = MetricReduction::values_so_far({}, label, own);
    std::size_t next_shared = 0, next_own = 0;
    for (std::size_t i = 0; i < sorted.entries_.size(); ++i) {
      const auto& value = sorted.entries_[i].shared ? of_shared[next_shared++] : of_own[next_own++];
      if (value.numel() == 1) all[saved_.size() + i].value = value.item<double>();
    }
  }
  State::List list;
  for (const auto& one : all)
    list.emplace_back(State::Map{{"loader", one.loader},
                                 {"logger", one.logger},
                                 {"name", one.name},
                                 {"prog_bar", one.prog_bar},
                                 {"state", one.state},
                                 {"value", one.value ? State(*one.value) : State()}});
  return list;
}

void MetricLog::add_state_dict(const State& state) {
  for (const auto& one : state.list()) {
    const auto& value = one.at("value");
    saved_.push_back(
        {{one.at("name").text(), one.at("loader").integer(), one.at("logger").boolean(), one.at("prog_bar").boolean()},
         one.at("state"),
         value.empty() ? std::nullopt : std::optional(value.number())});
  }
}

}  // namespace muster::trainer
