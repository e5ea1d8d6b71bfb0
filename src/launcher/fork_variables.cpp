#include "fork_variables.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "cluster/variables.h"
#include "fork_protocol.h"

namespace muster::launcher {
namespace {

/// Variables that differ between the ranks of a node.
constexpr std::array kOfRank{cluster::kRank,     cluster::kLocalRank,   cluster::kStoreFd,
                             cluster::kReportFd, cluster::kDeviceIndex, cluster::kVisibleDevices};
/// Variables that differ between the rounds of a job. No library reads these, or those of a rank, before main().
constexpr std::array kOfRound{
    cluster::kJob,          cluster::kJobStart,       cluster::kWorldSize,        cluster::kNodeRank,
    cluster::kNodes,        cluster::kLocalWorldSize, cluster::kMainAddress,      cluster::kMainPort,
    cluster::kRestartCount, cluster::kSecret,         cluster::kTorchRestartCount};

bool contains(const auto& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view one) { return one == name; });
}

/// Calls `visit(name, text)` for each variable of `rank` that is missing or different in `server`, and with nullptr as
/// the text for each that only `server` has.
void visit_differences(const Environment& server, const Environment& rank, const auto& visit) {
  for (const auto& [name, text] : rank.variables()) {
    const auto found = server.variables().find(name);
    if (found == server.variables().end() || found->second != text) visit(name, &text);
  }
  for (const auto& [name, text] : server.variables())
    if (!rank.variables().contains(name)) visit(name, static_cast<const std::string*>(nullptr));
}

}  // namespace

Environment fork_server_environment(const Environment& rank) {
  Environment result = rank;
  for (auto name : kOfRank) result.unset(name);
  return result;
}

std::optional<std::string> fixed_difference(const Environment& server, const Environment& rank) {
  std::optional<std::string> result;
  visit_differences(server, rank, [&](const std::string& name, const std::string*) {
    if (!contains(kOfRank, name) && !contains(kOfRound, name)) result = name;
  });
  return result;
}

std::string variable_words(const Environment& server, const Environment& rank,
                           const std::vector<std::string>& descriptor_variables) {
  std::string words;
  const auto add = [&](char kind, const std::string& word) { words += kind + word + '\0'; };
  visit_differences(server, rank, [&](const std::string& name, const std::string* text) {
    if (contains(descriptor_variables, name)) return;
    if (text) add(kSetVariable, name + "=" + *text);
    else add(kUnsetVariable, name);
  });
  for (const auto& name : descriptor_variables) add(kDescriptorVariable, name);
  return words;
}

}  // namespace muster::launcher
