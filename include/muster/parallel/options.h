#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "muster/parallel/sharded_options.h"

namespace muster::parallel {

class CommHook;

/// Options of PowerSGD, with the defaults of PyTorch's PowerSGDState; see comm_hook.h.
struct PowerSgdOptions {
  /// A gradient is compressed if compression makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// Columns of the two factors. More columns approximate the gradient better and cost more bytes.
  int64_t rank = 1;
  /// Seed of the first factors; equal on every rank.
  uint64_t seed = 0;
  /// The first backward, counted from 0, that compresses gradients; earlier ones communicate them in full.
  int64_t start_iteration = 1000;
  /// The compression error is added to the next gradient.
  bool use_error_feedback = true;
  /// Each factorization starts from the previous one.
  bool warm_start = true;
};

/// The names that DdpOptions::comm_hook may have.
inline constexpr std::array<std::string_view, 4> kCommHooks{"none", "fp16", "bf16", "powersgd"};
/// Whether kCommHooks has the name.
bool is_comm_hook(std::string_view name);
/// Throws: ConfigError (MU157) for a name that kCommHooks does not have.
void require_comm_hook(std::string_view name);

/// Options of replicated training. The bucket sizes are PyTorch's defaults. A Strategy throws ConfigError (MU347) for
/// sizes that are negative or NaN, and (MU157) for an unknown comm_hook.
struct DdpOptions {
  /// At the end of each backward that communicates gradients, buffers (running statistics) get the values of rank 0.
  /// Evaluation communicates nothing.
  bool broadcast_buffers = true;
  /// Gradients are communicated in buckets of about this many MiB.
  double bucket_cap_mb = 25;
  /// How gradients are communicated: "none" (as they are), "fp16", "bf16" or "powersgd".
  std::string comm_hook = "none";
  /// A custom hook, for one model; comm_hook must then be "none". See comm_hook.h.
  std::shared_ptr<CommHook> custom_hook = {};
  /// Allows steps in which some parameters get no gradient. Off: such a step is an error that names them.
  bool find_unused_parameters = false;
  /// The size of the first bucket to be ready, in MiB; smaller than the others, so that communication starts early.
  double first_bucket_mb = 1;
  /// Used with comm_hook "powersgd".
  PowerSgdOptions power_sgd = {};
  /// Declares that every step gives gradients to exactly the parameters that got them in the first step.
  bool static_graph = false;
};

/// How ranks with uneven numbers of batches train together.
struct JoinOptions {
  /// Sums of gradients are always divided by the world size; off: by the number of ranks that have a batch.
  bool divide_by_initial_world_size = true;
};

}  // namespace muster::parallel
