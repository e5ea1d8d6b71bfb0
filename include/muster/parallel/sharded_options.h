#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <typeindex>
#include <vector>

namespace torch::nn {
class Module;
}

namespace muster::parallel {

/// What is cut over the ranks. Each stage cuts what the ones before it do, too.
enum class ShardStage {
  none,        ///< nothing: replicated training
  optimizer,   ///< the optimizer's state and its step (ZeRO-1)
  gradients,   ///< gradients (ZeRO-2)
  full,        ///< parameters (ZeRO-3, FSDP)
};

/// What becomes of gathered parameters between forward and backward: true, false, or a number of ranks over which they stay cut.
class ReshardAfterForward {
 public:
  constexpr ReshardAfterForward(bool frees = true) noexcept : ranks_(frees ? 0 : 1) {}
  /// Requires: no less than 1, which is what false means. Checked where it is used.
  constexpr ReshardAfterForward(int ranks) noexcept : ranks_(ranks == 0 ? -1 : ranks) {}
  /// They do not all stay on each rank.
  constexpr explicit operator bool() const noexcept { return ranks_ != 1; }
  /// 0: over all that parameters are cut over.
  constexpr int ranks() const noexcept { return ranks_; }
  friend constexpr bool operator==(ReshardAfterForward, ReshardAfterForward) = default;

 private:
  int ranks_;
};

/// Options of sharded training.
///
/// Boundaries of units are drawn by wrap() and by all the unit_* fields together; a submodule that several of them name is one unit.
struct ShardedOptions {
  /// Where nothing else draws boundaries: make units of the repeated blocks found in the module, and of layers outside of them that
  /// hold as many elements as the smallest of these. Off: one unit in all.
  bool auto_wrap = true;
  /// Floating buffers are used in this dtype, and saved in the one the module was built in; the statistics of norms stay. Empty: that one.
  std::string buffer_dtype = "";
  /// With param_dtype: floating inputs of the prepared model's forwards are converted into it.
  bool cast_forward_inputs = true;
  /// Submodules that stay whole on every rank, with all below them: names, or regular expressions that match whole names.
  /// Their gradients are not communicated, so a prepared optimizer takes their parameters only if they are frozen (MU178).
  std::vector<std::string> ignored_modules = {};
  /// Units that are needed soon are gathered ahead as long as no more than this is gathered, in MiB. 0: the unit in use and the next.
  double limit_gathered_mb = 0;
  /// Floating outputs of the prepared model's forwards are converted into this dtype. Empty: as the precision says.
  std::string output_dtype = "";
  /// Parameters are gathered and used in this dtype ("bf16", "f16", "f32", "f64"), while each rank updates its part in the
  /// dtype the module was built in. Norms with running statistics (BatchNorm, InstanceNorm) are used in the latter. Empty: all are.
  std::string param_dtype = "";
  /// Gradients are divided by this before they are summed over ranks, and by the rest of the number of ranks after.
  /// 0: by all of it before, except in "f16": by about its root, so that neither end of the range is lost.
  double predivide_factor = 0;
  /// Gradients are summed over ranks in this dtype. Empty: the dtype the module was built in.
  std::string reduce_dtype = "";
  /// How many groups of shard_group_size ranks there must be: others are refused (MU198). 0: as many as the ranks make.
  int replicas = 0;
  /// Stage full: parameters are freed after forward and gathered again in backward, except the root's. Off: they stay until their
  /// gradients have arrived, for less traffic and more memory. A number that divides the ranks they are cut over: each group of so many
  /// neighbours keeps them until backward, cut among its ranks, and gathers them from there; choose the ranks of a node.
  ReshardAfterForward reshard_after_forward = true;
  /// Parameters are cut over groups of so many ranks and replicated over the groups (HSDP). 0: cut over all ranks; -1: over the ranks
  /// of each node.
  int shard_group_size = 0;
  ShardStage stage = ShardStage::full;
  /// Submodules of these classes are units: "TransformerEncoderLayer", without namespace, with or without "Impl".
  std::vector<std::string> unit_classes = {};
  /// From inside out, a submodule that has at least so many elements beside those of units within is a unit; lists and dictionaries
  /// of modules are none, and what lies within a MultiheadAttention is none. 0: not by size.
  int64_t unit_min_elements = 0;
  /// These submodules are units: names, or regular expressions that match whole names.
  std::vector<std::string> unit_names = {};
  /// Submodules for which this returns true are units. The same answers on every rank.
  std::function<bool(const std::string& name, const torch::nn::Module& module)> unit_predicate = {};
  /// Submodules of exactly these classes are units: typeid(BlockImpl).
  std::vector<std::type_index> unit_types = {};
};

/// How summon_full_params() shows whole parameters.
struct FullParamsOptions {
  /// Only the first rank sees whole values; the others hold on to their parts. Off: all ranks.
  bool rank0_only = false;
  /// What is written to parameters becomes their value: with rank0_only what the first rank wrote, otherwise each rank's own
  /// part of what it wrote. Off: a write is an error.
  bool writeback = true;
};

}  // namespace muster::parallel
