#pragma once

namespace muster::parallel {

/// Options of sharded training.
struct ShardedOptions {
  /// Where nothing is marked by wrap(): make units of the repeated blocks found in the module. Off: one unit in all.
  bool auto_wrap = true;
};

}  // namespace muster::parallel
