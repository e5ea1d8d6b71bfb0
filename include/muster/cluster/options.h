#pragma once

#include <functional>
#include <optional>

namespace muster {
class Environment;
struct ClusterEnvironment;

/// Reads the variables of a launcher that Muster does not know: the counterpart of Lightning's ClusterEnvironment.
/// Returns nullopt if that launcher did not start this process. Called before Muster's readers. Requires: it is a pure
/// function.
using ClusterReader = std::function<std::optional<ClusterEnvironment>(const Environment&)>;

}  // namespace muster
