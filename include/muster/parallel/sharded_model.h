#pragma once

#include "muster/dist/communicator.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/sharded_options.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace muster::parallel {

/// A module whose parameters are cut over the ranks, unit by unit (see wrap.h and ShardedOptions::auto_wrap).
///
/// Each rank keeps one part of every unit. The first operator of a forward or backward that touches a freed unit gathers
/// it; it is freed again when another unit is gathered, and the root's at the end of the forward or backward. The module, its
/// parameters and the user's own handles stay what they were, with names, sizes and versions; only their memory comes
/// and goes. When a unit's last gradient has arrived, the gradients are scaled by 1/size, summed in rank order, and each rank
/// keeps the sum for its part.
///
/// Parts are whole blocks of optim::kFlatPadding elements, so the piece of a parameter (FlatSource) is any stretch of
/// such blocks of its memory, or empty: then value and gradient have no elements. The state of an optimizer
/// that steps such pieces has the pieces' shape.
///
/// A parameter that got a gradient on any rank counts on all; one that got none on any rank has no gradient.
/// Without gradient_sync() whole gradients stay on each rank and add up (their price: the memory of the parameters).
/// After backward, grad() of a parameter is a stand-in that throws UsageError (MU167) when it is read, so that a step of
/// the user's own optimizer handle is no silent nothing. Resetting it (net->zero_grad()) forgets the gradient.
///
/// Touching a parameter outside enter_forward()..leave_forward() and backward throws UsageError (MU161) with the names of
/// parameter and unit; writing one throws at any time (MU162). A backward that is not surrounded by before_backward() and
/// after_backward() works as well. Gradients with a graph (create_graph) and autograd::grad with respect to parameters are
/// refused (MU153), and sparse gradients (MU154). After a backward that threw, clear the gradients.
class ShardedModel final : public ManagedModel {
 public:
  /// Takes the values of rank 0 and cuts them; buffers take rank 0's values too.
  /// Requires: the module is on its device and outlives this object.
  /// Collective: every rank of the group, with the same module.
  /// Throws: UsageError (MU160) where parameters cannot be watched; ConfigError (MU150), on all ranks, if the ranks'
  /// modules differ.
  ShardedModel(torch::nn::Module& module, dist::Communicator group, ShardedOptions options = {});
  /// The module's parameters lose their values; touching them throws UsageError (MU166).
  ~ShardedModel() override;

  /// Throws: UsageError (MU163) if a parameter no longer lies where it was put (Module::to, set_data).
  void enter_forward() override;
  void leave_forward() noexcept override;
  void before_backward() override;
  /// Collective: every rank, if any parameter got a gradient.
  void after_backward() override;

  void set_gradient_sync(bool on) override;
  bool gradient_sync() const override;

  /// Collective.
  at::Tensor gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) override;
  void for_each_gradient(const std::vector<at::Tensor>& parameters, const std::function<void(const at::Tensor&)>& f) override;
  void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) override;
  bool sharded() const override { return true; }

  /// Collective. Unit by unit, so that no more than one unit is gathered beside the result.
  std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) override;
  std::vector<ParameterPart> parts() override;
  std::string describe() const override;

  const optim::FlatPiece* find(const at::Tensor& parameter) const override;
  bool has_gradient(const at::Tensor& parameter) const override;
  void zero_grad(const at::Tensor& parameter, bool set_to_none) override;

  /// What gathering has cost so far.
  struct Figures {
    int64_t gathered_bytes = 0;        ///< in memory now
    int64_t peak_gathered_bytes = 0;
    int64_t gathers = 0;
    int64_t reductions = 0;
  };
  Figures figures() const;
  /// Names of the units, the root first.
  std::vector<std::string> unit_names() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace muster::parallel
