#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "model_registry.h"
#include "muster/tree/state.h"
#include "parallel/join.h"

namespace muster::runtime {

/// What a program does with gradients inside join_uneven_inputs(), told to ranks without batches, which do the same
/// with their shards. Thread safety: one thread at a time.
/// Why: docs/decisions/0173-ranks-without-batches-follow.md.
class JoinedSteps {
 public:
  explicit JoinedSteps(std::shared_ptr<ModelRegistry> registry) : registry_(std::move(registry)) {}

  /// The session in which this rank announces; nullptr: none.
  void set_session(parallel::JoinSession* session) noexcept { session_ = session; }
  /// In a session: announces that this rank does `what` next, with these arguments. Collective.
  /// Throws: UsageError (MU118) if another rank that has a batch does something else.
  void announce(const char* what, const std::function<State::Map()>& arguments) const;
  /// Joinable::gradient_states() of the models whose steps all ranks make.
  State gradient_states() const;
  /// Joinable::adopt_gradient_states(), with what another rank has.
  void adopt_gradient_states(const State& states) const;

  /// Parameters as numbers that every rank understands; those that no prepared model holds are left out.
  State numbers_of(const std::vector<at::Tensor>& parameters) const;
  std::vector<at::Tensor> parameters_of(const State& numbers) const;

 private:
  std::vector<at::Tensor> all_parameters() const;

  std::shared_ptr<ModelRegistry> registry_;
  parallel::JoinSession* session_ = nullptr;
};

/// The options of all groups of an optimizer.
State group_options(torch::optim::Optimizer& optimizer);
/// Requires: group_options() of an optimizer of the same class with as many groups.
void set_group_options(torch::optim::Optimizer& optimizer, const State& options);

}  // namespace muster::runtime
