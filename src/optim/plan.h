#pragma once

#include <optional>
#include <vector>

#include "optim/parameter_entry.h"
#include "optim/rule.h"

namespace muster::optim {

/// The calls that one step makes for one set of parameters with gradients. Built rarely, run in every step.
///
/// On a CPU each input of a call has a multiple of kFlatPadding elements. If a parameter is updated where it lies, the
/// last elements that do not fill a vector go through a small padded copy.
class UpdatePlan {
 public:
  /// Requires: attach_states() was called for these entries.
  UpdatePlan(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries);

  /// Updates parameters and states. Requires: the entries' gradients are available.
  void run(UpdateRule rule, torch::optim::Optimizer& inner, const std::vector<ParameterEntry>& entries,
           const std::optional<at::Tensor>& found_inf);

 private:
  struct Link {  // an input whose gradient is wherever autograd put it
    size_t entry, call, input;
  };
  struct Tail {  // the end of a parameter, copied to padded memory and back
    size_t entry;
    at::Tensor value, gradient;
    int64_t begin, count;
  };
  struct CallInput {
    size_t entry;
    at::Tensor value, gradient;
    int64_t state_begin;
    bool linked;
  };

  std::vector<CallInput> inputs_of(const std::vector<ParameterEntry>& entries, const std::vector<size_t>& members);
  void add_call(StateSet states, const std::vector<ParameterEntry>& entries, const std::vector<size_t>& members);
  void copy_in(const std::vector<ParameterEntry>& entries);
  void copy_out(const std::vector<ParameterEntry>& entries);

  std::vector<UpdateCall> calls_;
  std::vector<Link> links_;
  std::vector<Tail> tails_;
  at::Tensor nothing_;  // target of the links between steps, so that they keep no gradient alive
};

}  // namespace muster::optim
