#pragma once

#include <functional>
#include <optional>

namespace muster {

class Environment;
struct Cluster;

/// Reads the variables of a launcher that Muster does not know, as a ClusterEnvironment of Lightning does; nullopt:
/// this process was not started by it. A program passes it as the option `cluster_reader`, and it is asked before the
/// readers of Muster. It must be a pure function of the variables.
using ClusterReader = std::function<std::optional<Cluster>(const Environment&)>;

}  // namespace muster
