#pragma once

#include <initializer_list>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace muster {

/// Which activations backward makes again instead of keeping them: those inside of blocks. What goes into a block is
/// kept, and so is all that autograd saves outside of blocks. A submodule that several fields select is one block; of
/// nested blocks the innermost counts.
/// Why: docs/decisions/0174-recompute-by-recorded-operators.md.
struct RecomputeOptions {
  /// Classes without namespace, with or without "Impl" ("TransformerEncoderLayer"), names of submodules, or regular
  /// expressions that match whole names. "auto": the units of sharded training, which without sharding are the modules
  /// marked by wrap() and repeated blocks. Empty: no blocks, unless `types` has some.
  std::vector<std::string> blocks = {};
  /// Compares what is made again with what it was made from, in the first step of each block, and refuses (MU588) an
  /// operator that does not do the same twice.
  bool check = true;
  /// Only every n-th of the blocks, from the first on.
  int every = 1;
  /// Operators whose results are kept although they are in a block: "matmul" (products of matrices), "attention",
  /// "convolution", or an operator's name ("aten::gelu").
  std::vector<std::string> keep = {};
  /// MiB that the activations of all blocks may take after a forward; backward makes again what exceeds it, in the
  /// blocks where that takes the least time. The first step makes all blocks again and measures them; ranks then agree
  /// on one choice. 0: all blocks are made again.
  double budget_mib = 0;
  /// Submodules of exactly these classes are blocks: typeid(BlockImpl).
  std::vector<std::type_index> types = {};

  /// Whether anything is recomputed.
  bool on() const noexcept { return !blocks.empty() || !types.empty(); }
};

/// Which blocks are recomputed, as FSDP of PyTorch and of Lightning say it: true for the units, classes by name or by
/// type, or nothing. The same as RecomputeOptions with these blocks.
class ActivationCheckpointing {
 public:
  ActivationCheckpointing(bool on = false) {
    if (on) options_.blocks = {"auto"};
  }
  ActivationCheckpointing(const char* block) : ActivationCheckpointing(std::string(block)) {}
  ActivationCheckpointing(std::string block) { options_.blocks = {std::move(block)}; }
  ActivationCheckpointing(std::vector<std::string> blocks) { options_.blocks = std::move(blocks); }
  ActivationCheckpointing(const std::type_info& type) { options_.types = {type}; }
  ActivationCheckpointing(std::initializer_list<std::type_index> types) { options_.types = types; }
  const RecomputeOptions& options() const noexcept { return options_; }

 private:
  RecomputeOptions options_;
};

}  // namespace muster
