#pragma once

#include <functional>
#include <optional>

namespace muster {
class Environment;
struct ClusterEnvironment;

/// Reads the variables of a launcher that Muster does not know, as a ClusterEnvironment of Lightning does; nullopt:
/// this process was not started by it. Asked before Muster's readers. Requires: it is a pure function.
using ClusterReader = std::function<std::optional<ClusterEnvironment>(const Environment&)>;

}  // namespace muster
