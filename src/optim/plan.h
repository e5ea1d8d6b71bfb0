#pragma once

#include <vector>

#include "optim/rule.h"
#include "optim/slot.h"

namespace muster::optim {

/// The calls that one step makes, for one set of parameters with gradients. Built seldom, run every step.
///
/// On a CPU each entry of a call has a multiple of kFlatPadding elements. Of a parameter that is updated where it lies,
/// the last elements that do not fill a vector go through a small padded copy.
class UpdatePlan {
 public:
  /// Requires: attach_states() was called for these slots.
  UpdatePlan(Rule rule, torch::optim::Optimizer& inner, const std::vector<Slot>& slots);

  /// Updates parameters and states. Requires: the slots' gradients are there.
  void run(Rule rule, torch::optim::Optimizer& inner, const std::vector<Slot>& slots);

 private:
  struct Link {  // an entry whose gradient is wherever autograd put it
    size_t slot, call, entry;
  };
  struct Tail {  // the end of a parameter, copied to padded memory and back
    size_t slot;
    at::Tensor value, gradient;
    int64_t begin, count;
  };
  struct Entry {
    size_t slot;
    at::Tensor value, gradient;
    int64_t state_begin;
    bool linked;
  };

  std::vector<Entry> entries_of(const std::vector<Slot>& slots, const std::vector<size_t>& members);
  void add_call(StateSet states, const std::vector<Slot>& slots, const std::vector<size_t>& members);
  void copy_in(const std::vector<Slot>& slots);
  void copy_out(const std::vector<Slot>& slots);

  std::vector<UpdateCall> calls_;
  std::vector<Link> links_;
  std::vector<Tail> tails_;
  at::Tensor nothing_;  // what links look at between steps, so that no gradient is kept alive
};

}  // namespace muster::optim
