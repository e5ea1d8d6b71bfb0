#pragma once

#include "muster/parallel/sharded_options.h"

namespace muster::parallel {

/// Options of replicated training.
struct DdpOptions {
  /// Before each training forward, buffers (running statistics) get the values of rank 0.
  bool broadcast_buffers = true;
  /// Gradients are communicated in buckets of about this many MiB.
  double bucket_cap_mb = 25;
  /// Parameters may get no gradient in a step. Off: such a step is an error that names them.
  bool find_unused_parameters = false;
  /// The first bucket to be ready is smaller, so that communication starts early; MiB.
  double first_bucket_mb = 1;
  /// The same parameters get gradients in every step; those without are found in the first.
  bool static_graph = false;
};

/// How ranks with unequally many batches train together.
struct JoinOptions {
  /// Sums of gradients are divided by the world size all along; off: by the number of ranks that have a batch.
  bool divide_by_initial_world_size = true;
};

}  // namespace muster::parallel
