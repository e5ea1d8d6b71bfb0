#include "metric_log.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "log_book.h"
#include "muster/base/detail/listing.h"
#include "muster/base/error.h"

namespace muster::trainer {
namespace {

std::string logged_in(std::string_view name, Hook hook) {
  return "log(\"" + std::string(name) + "\", metric) in " + std::string(info(hook).name);
}

}  // namespace

void MetricLog::add(const LogContext& context, std::string_view name, Metric& metric, const LogOptions& options) {
  const auto where = logged_in(name, context.hook);
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
  if (had_filler_ && !in_filler_)
    throw UsageError("MU458", where +
                                  ": this rank has run a batch without real samples, which may have changed the metric "
                                  "before it was known; log the metric in the step that updates it");
  entries_.push_back({.metric = &metric,
                      .name = full,
                      .loader = context.loader,
                      .shared = options.sync_dist.value_or(true) && !options.rank_zero_only,
                      .logger = options.logger,
                      .prog_bar = options.prog_bar});
}

void MetricLog::begin_filler() {
  in_filler_ = had_filler_ = true;
  for (const auto& entry : entries_) before_filler_.emplace_back(entry.metric, clone(entry.metric->state_dict()));
}

void MetricLog::end_filler() {
  in_filler_ = false;
  for (const auto& entry : entries_) entry.metric->reset();  // one that is new had no real batch before
  for (const auto& [metric, state] : before_filler_) metric->load_state_dict(state);
  before_filler_.clear();
}

std::vector<MetricValue> MetricLog::close(const comm::Communicator& group) {
  const auto place = [](const Entry& entry) { return std::tie(entry.loader, entry.name); };
  std::ranges::sort(entries_, std::less(), place);
  std::vector<Metric*> shared, own;
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    (entry.shared ? shared : own).push_back(entry.metric);
    if (entry.shared) names.push_back(entry.name);
  }
  MetricReduction::run(group, "the metric objects of an epoch: " + listed(names), shared);
  MetricReduction::run_here(own);
  std::vector<MetricValue> values;
  for (const auto& entry : std::exchange(entries_, {}))
    if (const auto& value = entry.metric->value(); value.numel() == 1)
      values.push_back({.name = entry.name,
                        .loader = entry.loader,
                        .value = value.item<double>(),
                        .logger = entry.logger,
                        .prog_bar = entry.prog_bar});
  had_filler_ = false;
  return values;
}

}  // namespace muster::trainer
