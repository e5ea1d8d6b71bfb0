#include "muster/track/throughput.h"

#include "base/log.h"
#include "muster/base/error.h"

namespace muster {

Throughput::Throughput(const ThroughputOptions& options) : options_(options) {
  if (options.window < 2)
    throw ConfigError("MU007", log::str("a rate needs a window of at least 2 updates, not ", options.window));
  if (options.world_size < 1)
    throw ConfigError("MU007",
                      log::str("world_size is ", options.world_size, "; it counts ranks, so it is at least 1"));
}

void Throughput::update(const ThroughputCounts& counts) {
  const auto refuse = [](const std::string& what) {
    throw UsageError("MU008", what + "; counts run from the start of training and grow");
  };
  if (counts.samples < counts.batches)
    refuse(log::str(counts.samples, " samples in ", counts.batches, " batches are fewer than one a batch"));
  if (!window_.empty()) {
    const auto& last = window_.back();
    const auto require_growth = [&](const char* name, auto before, auto now, const char* unit = "") {
      if (now <= before) refuse(log::str(name, " went from ", before, " to ", now, unit));
    };
    require_growth("time", last.seconds, counts.seconds, " seconds");
    require_growth("batches", last.batches, counts.batches);
    require_growth("samples", last.samples, counts.samples);
    if (counts.lengths) require_growth("lengths", last.lengths, counts.lengths);
  }
  window_.push_back(counts);
  if (std::ssize(window_) > options_.window) window_.pop_front();
}

std::map<std::string, double> Throughput::compute() const {
  std::map<std::string, double> values;
  if (window_.empty()) return values;
  const auto& last = window_.back();
  values = {{"time", last.seconds},
            {"batches", static_cast<double>(last.batches)},
            {"samples", static_cast<double>(last.samples)}};
  if (last.lengths) values["lengths"] = static_cast<double>(last.lengths);
  if (window_.size() > 1) add_rates(values);
  return values;
}

void Throughput::add_rates(std::map<std::string, double>& values) const {
  const auto& first = window_.front();
  const auto& last = window_.back();
  const double seconds = last.seconds - first.seconds;
  const auto rate = [&](const std::string& name, double count) {
    values["device/" + name] = count / seconds;
    if (options_.world_size > 1) values[name] = count / seconds * options_.world_size;
  };
  rate("batches_per_sec", static_cast<double>(last.batches - first.batches));
  rate("samples_per_sec", static_cast<double>(last.samples - first.samples));
  if (last.lengths) rate("items_per_sec", static_cast<double>(last.lengths - first.lengths));
  double flops = 0;
  for (auto counts = window_.begin() + 1; counts != window_.end(); ++counts) flops += counts->flops;
  if (flops == 0) return;
  rate("flops_per_sec", flops);
  if (options_.available_flops > 0) values["device/mfu"] = flops / seconds / options_.available_flops;
}

}  // namespace muster
