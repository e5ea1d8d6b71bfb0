#pragma once

#include <string>

namespace muster::parallel {

/// What is cut over the ranks. Each stage cuts what the ones before it do, too.
enum class ShardStage {
  none,        ///< nothing: replicated training
  optimizer,   ///< the optimizer's state and its step (ZeRO-1)
  gradients,   ///< gradients (ZeRO-2)
  full,        ///< parameters (ZeRO-3, FSDP)
};

/// Options of sharded training.
struct ShardedOptions {
  /// Where nothing is marked by wrap(): make units of the repeated blocks found in the module. Off: one unit in all.
  bool auto_wrap = true;
  /// Units that are needed soon are gathered ahead as long as no more than this is gathered, in MiB. 0: the unit in use and the next.
  double limit_gathered_mb = 0;
  /// Parameters are gathered and used in this dtype ("bf16", "f16", "f32", "f64"), while each rank updates its part in the
  /// dtype the module was built in. Empty: that one.
  std::string param_dtype = "";
  /// Gradients are divided by this before they are summed over ranks, and by the rest of the number of ranks after.
  /// 0: by all of it before, except in "f16": by about its root, so that neither end of the range is lost.
  double predivide_factor = 0;
  /// Gradients are summed over ranks in this dtype. Empty: the dtype the module was built in.
  std::string reduce_dtype = "";
  /// Stage full: parameters are freed after forward and gathered again in backward, except the root's. Off: they stay until their
  /// gradients have arrived, for less traffic and more memory.
  bool reshard_after_forward = true;
  ShardStage stage = ShardStage::full;
};

}  // namespace muster::parallel
