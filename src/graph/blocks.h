#pragma once  // for other rooms

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "graph/region.h"
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
  bool is_checked(size_t block) const noexcept { return check_ && !is_seen(block); }
  /// What the first forward that has used the block, and its backward, are added to; nullptr in later ones.
  std::shared_ptr<MeasuredCost> cost_to_measure(size_t block) const noexcept {
    return is_seen(block) ? nullptr : costs_[block];
  }
  BlockCost cost(size_t block) const { return costs_[block]->get(); }
  /// What one forward keeps of the block for backward; 0 before it was measured.
  int64_t bytes_after_forward(size_t block) const;
  /// False for a block whose activations are kept, since they are within the budget.
  bool is_recomputed(size_t block) const noexcept { return !kept_blocks_[block]; }
  bool any_recomputed() const { return std::ranges::find(kept_blocks_, false) != kept_blocks_.end(); }
  /// Whether blocks were measured, and none were chosen yet although there is a budget.
  bool awaits_choice() const;
  bool has_choice() const noexcept { return budget_ == 0 || chosen_; }
  /// Chooses the blocks to make again within the budget. Requires: no recording and no other thread uses the blocks;
  /// ranks give the same costs.
  void choose(const std::vector<BlockCost>& costs);
  void note_seen(size_t block) const noexcept { seen_[block].store(true, std::memory_order_relaxed); }
  /// Lines for plan(): "recompute: 12 blocks (blocks.0 to blocks.11)", and what each costs once it was measured.
  std::vector<std::string> describe() const;

 private:
  bool is_seen(size_t block) const noexcept { return seen_[block].load(std::memory_order_relaxed); }

  bool check_;
  int64_t budget_;  // bytes; 0: none
  bool chosen_ = false;
  std::vector<bool> kept_blocks_;
  std::vector<Block> blocks_;
  std::vector<at::Tensor> others_;
  std::unordered_set<std::string> kept_;
  // By block:
  std::unique_ptr<std::atomic<bool>[]> seen_;
  std::vector<std::shared_ptr<MeasuredCost>> costs_;
};

}  // namespace muster::graph
