#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "hook/gradient_hooks.h"
#include "parallel/local.h"

namespace muster::parallel {

/// Detects a backward in which no gradient came from a forward in a scope of the prepared model.
/// Thread safety: do not call forward_ended() concurrently with other members.
class BypassCheck {
 public:
  explicit BypassCheck(std::vector<at::Tensor> leaves) : leaf_count_(leaves.size()), graphs_(std::move(leaves)) {}
  /// Adds a leaf and returns its index. Leaves are numbered in the order in which they are added.
  size_t add_leaf(const at::Tensor& leaf) {
    graphs_.add(leaf);
    return leaf_count_++;
  }
  /// A forward scope has ended: the graphs that are alive now came from it.
  void forward_ended() noexcept { graphs_.note(); }
  void backward_begins() noexcept { gradient_ = scoped_ = false; }
  /// A gradient of this leaf has arrived.
  void gradient_arrived(size_t leaf) {
    gradient_ = true;
    scoped_ = scoped_ || graphs_.noted(leaf);
  }
  /// A backward has ended inside another one: its forward ran there, outside of every scope, which is allowed.
  void nested_backward_ended() noexcept { scoped_ = true; }
  /// Throws: UsageError (MU151), once per backward.
  void check() {
    if (scoped_ || !std::exchange(gradient_, false)) return;
    refuse_bypass();
  }

 private:
  size_t leaf_count_;
  hook::GraphUse graphs_;
  bool gradient_ = false;  // whether a gradient has arrived
  bool scoped_ = false;    // whether a gradient came from a forward in a scope
};

}  // namespace muster::parallel
