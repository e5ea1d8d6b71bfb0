#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "muster/graph/options.h"
#include "muster/precision/options.h"

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

namespace torch::nn {
class Module;
}

namespace muster::parallel {

/// What is sharded over the ranks. Each stage also shards what the earlier stages shard.
enum class ShardStage {
  none,       ///< nothing: replicated training
  optimizer,  ///< the optimizer's state and its step (ZeRO-1)
  gradients,  ///< gradients (ZeRO-2)
  full,       ///< parameters (ZeRO-3, FSDP)
};

/// Whether gathered parameters are resharded between forward and backward: true, false, or a number of ranks over which
/// they stay sharded.
class ReshardAfterForward {
 public:
  constexpr ReshardAfterForward(bool frees = true) noexcept : ranks_(frees ? 0 : 1) {}
  /// Requires: at least 1, which means false. Checked where it is used.
  constexpr ReshardAfterForward(int ranks) noexcept : ranks_(ranks == 0 ? -1 : ranks) {}
  /// Whether gathered parameters are resharded.
  constexpr explicit operator bool() const noexcept { return ranks_ != 1; }
  /// The number of ranks over which they stay sharded; 0: all ranks that parameters are sharded over.
  constexpr int ranks() const noexcept { return ranks_; }
  friend constexpr bool operator==(ReshardAfterForward, ReshardAfterForward) = default;

 private:
  int ranks_;
};

/// Options of sharded training. wrap() and all unit_* fields together define the units; a submodule that several of
/// them select is one unit.
struct ShardedOptions {
  /// Activations that backward makes again: true (those of the units), or classes. RecomputeOptions says more, and
  /// counts where the program gives them.
  ActivationCheckpointing activation_checkpointing = false;
  /// If nothing else defines units: the repeated blocks found in the module become units, and so do layers outside of
  /// them that have at least as many elements as the smallest block. Off: the whole module is one unit.
  bool auto_wrap = true;
  /// Floating-point buffers are used in this dtype, and saved in the dtype the module was built in; the running
  /// statistics of norms keep their dtype. Empty: the dtype the module was built in.
  DtypeName buffer_dtype = "";
  /// With param_dtype: floating-point inputs of the prepared model's forwards are converted to it.
  bool cast_forward_inputs = true;
  /// Submodules that stay whole on every rank, with all their submodules: names, or regular expressions that match
  /// whole names. Their gradients are not communicated, so a prepared optimizer takes their parameters only if they are
  /// frozen (MU178).
  std::vector<std::string> ignored_modules = {};
  /// Limit of gathered parameters, in MiB, up to which units that are needed soon are prefetched. 0: the unit in use
  /// and the next one.
  double limit_gathered_mb = 0;
  /// If the ranks that parameters are sharded over are on one host and share memory, they share one copy of the full
  /// parameters: nothing is gathered, and steps are collective. Off: each rank gathers its own copy. See
  /// docs/decisions/0128-one-copy-of-the-parameters-per-host.md.
  bool one_copy_per_host = true;
  /// Floating-point outputs of the prepared model's forwards are converted to this dtype. Empty: the dtype that the
  /// precision sets.
  DtypeName output_dtype = "";
  /// Parameters are gathered and used in this dtype ("bf16", "f16", "f32", "f64", or torch::kBFloat16 and so on), while
  /// each rank updates its shard in the dtype the module was built in. Norms with running statistics (BatchNorm,
  /// InstanceNorm) are used in the latter. Empty: all parameters are used in the dtype the module was built in.
  DtypeName param_dtype = "";
  /// Gradients are divided by this before they are summed over ranks, and by the number of ranks over this factor
  /// afterwards. 0: by the number of ranks before the sum, except in "f16": by about its square root, so that neither
  /// end of the range is lost.
  double predivide_factor = 0;
  /// Gradients are summed over ranks in this dtype. Empty: the dtype the module was built in.
  DtypeName reduce_dtype = "";
  /// The required number of groups of shard_group_size ranks; any other number is an error (MU198). 0: as many as there
  /// are ranks for.
  int replicas = 0;
  /// Stage full: parameters are freed after forward and gathered again in backward, except the root's. Off: they stay
  /// until their gradients have arrived, for less traffic and more memory. A number that divides the number of ranks
  /// that parameters are sharded over: each group of that many neighbours keeps them until backward, sharded among its
  /// ranks, and gathers them from there; choose the number of ranks per node.
  ReshardAfterForward reshard_after_forward = true;
  /// Parameters are sharded over groups of this many ranks and replicated over the groups (HSDP). 0: sharded over all
  /// ranks; -1: over the ranks of each node.
  int shard_group_size = 0;
  ShardStage stage = ShardStage::full;
  /// Submodules of these classes are units: "TransformerEncoderLayer", without namespace, with or without "Impl".
  std::vector<std::string> unit_classes = {};
  /// From the innermost submodule outwards, a submodule is a unit if it has at least this many elements, not counting
  /// those of units within it. This rule never selects lists and dictionaries of modules, or anything within a
  /// MultiheadAttention. 0: size defines no units.
  int64_t unit_min_elements = 0;
  /// Submodules that are units: names, or regular expressions that match whole names.
  std::vector<std::string> unit_names = {};
  /// Submodules for which this returns true are units. It must return equal results on every rank.
  std::function<bool(const std::string& name, const torch::nn::Module& module)> unit_predicate = {};
  /// Submodules of exactly these classes are units: typeid(BlockImpl).
  std::vector<std::type_index> unit_types = {};
};

}  // namespace muster::parallel
