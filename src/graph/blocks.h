#pragma once  // for other rooms

#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/graph/options.h"
#include "tree/submodules.h"

namespace muster::graph {

/// A submodule whose activations are made again.
struct Block {
  std::string name;
  std::vector<at::Tensor> parameters;
};

/// The blocks of a module.
/// Thread safety: a const object is used by any number of threads.
class Blocks {
 public:
  /// `automatic`: what "auto" stands for. Throws: ConfigError (MU148, MU589).
  /// `warns`: whether blocks without parameters are named in a warning.
  Blocks(const torch::nn::Module& root, const RecomputeOptions& options, const tree::NamedModules& automatic,
         bool warns = true);

  const std::vector<Block>& all() const noexcept { return blocks_; }
  /// Parameters of the module that are in no block.
  const std::vector<at::Tensor>& others() const noexcept { return others_; }
  bool keeps_results_of(const std::string& op) const { return !kept_.empty() && kept_.contains(op); }
  /// Whether replays of this block are to be checked: in the first forward that has used it.
  bool is_checked(size_t block) const noexcept { return check_ && !seen_[block].load(std::memory_order_relaxed); }
  void note_seen(size_t block) const noexcept { seen_[block].store(true, std::memory_order_relaxed); }
  /// One line for plan(): "recompute: 12 blocks of 14 (blocks.0, ...)".
  std::string describe() const;

 private:
  bool check_;
  std::vector<Block> blocks_;
  std::vector<at::Tensor> others_;
  std::unordered_set<std::string> kept_;
  std::unique_ptr<std::atomic<bool>[]> seen_;  // by block
};

}  // namespace muster::graph
