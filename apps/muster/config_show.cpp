#include "config_show.h"

#include <algorithm>
#include <cstdio>

#include "launcher/devices.h"
#include "options/launcher_fields.h"

namespace muster::cli {
namespace {

struct Row {
  std::string name, value, source;
};

/// Whether the option is shown even if nobody set it.
bool is_main_option(const std::string& name) {
  for (const char* one : {"accelerator", "devices", "nodes", "precision", "strategy"})
    if (name == one) return true;
  return false;
}

std::string shown_value(const std::string& text) { return text.empty() ? "-" : text; }

void print_rows(const std::vector<Row>& rows) {
  size_t name = 0, value = 0;
  for (const auto& row : rows) {
    name = std::max(name, row.name.size());
    value = std::max(value, row.value.size());
  }
  for (const auto& row : rows)
    std::printf("%-*s  %-*s  %s\n", static_cast<int>(name), row.name.c_str(), static_cast<int>(value),
                row.value.c_str(), row.source.c_str());
}

std::string described_file(const LaunchSources& call) {
  if (call.path.empty()) return "none; `muster config` writes " + user_config_path(call.sources.variables);
  return call.path;
}

}  // namespace

void show_config(const LaunchSources& call, bool all) {
  auto given = given_options(call.sources);
  const auto options = run_options(given);
  const int accelerators = launcher::count_accelerators(call.sources.variables);
  const auto choice =
      launcher::choose_devices({options.accelerator, options.devices, accelerators, options.devices_place});
  std::printf("file   %s\n", described_file(call).c_str());
  const auto where = options.nodes == NodeRange(1) ? std::string("on this node")
                                                   : "(" + std::to_string(choice.count) + " on each of " +
                                                         options::Value<NodeRange>::write(options.nodes) + " nodes)";
  std::printf("ranks  %d %s\n\n", choice.count * options.nodes.max, where.c_str());
  std::vector<Row> rows{{"option", "value", "source"}};
  for (const auto& option : all_options()) {
    const auto found = given.find(option.name);
    if (found != given.end()) rows.push_back({option.name, shown_value(found->second.text), found->second.place});
    else if (all || is_main_option(option.name))
      rows.push_back({option.name, shown_value(option.default_text), "default"});
  }
  print_rows(rows);
}

}  // namespace muster::cli
