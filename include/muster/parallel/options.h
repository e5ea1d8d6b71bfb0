#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "muster/parallel/sharded_options.h"

namespace muster::parallel {

class CommHook;

/// Options of PowerSGD; see comm_hook.h.
struct PowerSgdOptions {
  /// A gradient is compressed if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// Columns of the two factors: more approximate the gradient better and cost more bytes.
  int64_t rank = 1;
  /// Seed of the first factors; the same on every rank.
  uint64_t seed = 0;
  /// Full gradients are communicated in backwards before this one.
  int64_t start_iteration = 1000;
  /// The compression error is added to the next gradient.
  bool use_error_feedback = true;
  /// Each factorization starts from the previous one.
  bool warm_start = true;
};

/// Options of replicated training. A Strategy throws ConfigError (MU347) for sizes that are negative or no number.
struct DdpOptions {
  /// At the end of each backward that communicates gradients, buffers (running statistics) get the values of rank 0.
  /// Evaluation communicates nothing.
  bool broadcast_buffers = true;
  /// Gradients are communicated in buckets of about this many MiB.
  double bucket_cap_mb = 25;
  /// How gradients are communicated: "none" (as they are), "fp16", "bf16" or "powersgd".
  std::string comm_hook = "none";
  /// A hook of your own, for one model; comm_hook stays "none" then. See comm_hook.h.
  std::shared_ptr<CommHook> custom_hook = {};
  /// Allows parameters to get no gradient in a step. Off: such a step is an error that names them.
  bool find_unused_parameters = false;
  /// The size of the first bucket to be ready, in MiB: smaller, so that communication starts early.
  double first_bucket_mb = 1;
  /// Used with comm_hook "powersgd".
  PowerSgdOptions power_sgd = {};
  /// The same parameters get gradients in every step; those without gradients are found in the first.
  bool static_graph = false;
};

/// How ranks with uneven numbers of batches train together.
struct JoinOptions {
  /// Sums of gradients are always divided by the world size; off: by the number of ranks that have a batch.
  bool divide_by_initial_world_size = true;
};

}  // namespace muster::parallel
