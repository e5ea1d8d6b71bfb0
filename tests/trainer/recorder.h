#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "muster/track/trackers.h"
#include "muster/trainer.h"
#include "trainer/counting_module.h"

namespace muster::testing {

/// What a tracker got.
struct Recorder : Tracker {
  using Row = std::pair<int64_t, Metrics>;
  std::vector<Row> rows = {};
  std::map<std::string, std::string> hyperparams = {};
  int hyperparam_calls = 0;
  std::vector<RunStatus> ends = {};

  std::string name() const override { return "recorder"; }
  void log(const LoggedStep& step) override {
    Metrics values;
    for (const auto& value : step.values) values[std::string(value.name)] = std::get<double>(value.data);
    rows.emplace_back(step.step, std::move(values));
  }
  void log_hyperparams(std::span<const LoggedValue> values) override {
    ++hyperparam_calls;
    for (const auto& value : values) {
      std::ostringstream text;
      std::visit(
          [&](const auto& data) {
            if constexpr (requires { text << data; }) text << data;
          },
          value.data);
      hyperparams[std::string(value.name)] = text.str();
    }
  }
  void finish(RunStatus status) override { ends.push_back(status); }

  /// Steps of the rows that have this name.
  std::vector<int64_t> steps_of(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const auto& [step, values] : rows)
      if (values.contains(name)) steps.push_back(step);
    return steps;
  }
};

/// Options of a Trainer whose only tracker this is.
inline TrainerOptions logging_to(const std::filesystem::path& folder, const std::shared_ptr<Recorder>& recorder,
                                 TrainerOptions options = {}) {
  options.default_root_dir = folder;
  options.logger = {.log_with = {recorder}};
  return quiet(options);
}

}  // namespace muster::testing
