#pragma once

namespace muster {

namespace parallel {

/// How summon_full_params() exposes full parameters.
struct FullParamsOptions {
  /// Only the first rank gets full parameters; the others keep their shards. Off: all ranks.
  bool rank0_only = false;
  /// Values that are written to parameters persist: with rank0_only those that the first rank wrote, otherwise each
  /// rank's own shard of what it wrote. Off: a write is an error.
  bool writeback = true;
};

}  // namespace parallel

using FullParamsOptions = parallel::FullParamsOptions;

}  // namespace muster
