#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "muster/optim/flat_parameters.h"
#include "muster/optim/options.h"
#include "muster/tree/state.h"

namespace muster {

/// A running average of a module's weights that computes the values of Python's torch.optim.swa_utils.AveragedModel:
/// stochastic weight averaging (Izmailov et al. 2018) or an exponential moving average. The first update copies the
/// weights.
/// Buffers take the module's latest values unless use_buffers averages them too.
/// Needs as much memory as the weights (sharded: as this rank's shards). Thread safety: one thread at a time.
class AveragedModel {
 public:
  /// Requires: the module outlives this object and stays on its device; the owner, if given, outlives this object.
  /// `owner`: stores the parameters that are not, or not entirely, in the module; a prepared model is its own owner. If
  /// the module is prepared later, this object finds the new owner.
  /// Throws: ConfigError (MU140) for a decay outside [0, 1].
  explicit AveragedModel(torch::nn::Module& module, AveragingOptions options = {},
                         optim::FlatParameters* owner = nullptr);
  /// For a prepared model, under any strategy: AveragedModel average(model, {.decay = 0.99}).
  template <class Model>
    requires requires(const Model& model) { flat_parameters_of(*model.prepared()); }
  explicit AveragedModel(const Model& model, AveragingOptions options = {})
      : AveragedModel(*model, options, flat_parameters_of(*model.prepared())) {}

  /// Call it after an optimizer step. Throws: UsageError (MU141) inside use(); (MU583), as use(), if the module was
  /// sharded after the first update.
  void update();
  /// Number of updates so far.
  int64_t n_averaged() const noexcept { return n_averaged_; }

  /// Runs f, for evaluation, with the averaged weights in the module and the training weights in this object. Returns
  /// what f returns. Restores the training weights afterwards, also if f throws.
  /// Throws: what f throws; UsageError (MU141) inside another use(), or before the first update; (MU188) at the end, if
  /// an optimizer stepped in f.
  /// Collective: if parameters are sharded, since the other ranks need this rank's shards. f itself may differ between
  /// ranks.
  template <class F>
  std::invoke_result_t<F&> use(F&& f) {
    if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
      lend([&] { f(); });
    } else {
      std::optional<std::invoke_result_t<F&>> result;
      lend([&] { result.emplace(f()); });
      return *std::move(result);
    }
  }
  /// Copies the averaged weights to the module permanently. Collective: as use().
  void copy_to_module();

  /// The averages under the names of parameters and buffers (flat shards, if parameters are sharded), and the number of
  /// updates as "n_averaged".
  State state_dict() const;
  /// Throws: UsageError (MU142), changing nothing, if a name is missing or has another shape.
  void load_state_dict(const State& state);

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    at::Tensor average;
    bool averaged;  // off: takes the latest value instead
  };
  /// Returns where the entry's values are now: parameters move to other memory when their module is prepared.
  at::Tensor live(const Entry& entry) const;
  /// Finds the current owner and converts the averages to its layout, for parameters that have moved: their module was
  /// prepared or sharded later, or they were frozen when it was prepared.
  void follow_owner();
  void lend(const std::function<void()>& f);
  void exchange();
  void write(const std::function<void(const Entry&)>& f);
  void require_outside(const char* call) const;
  void require_some() const;

  AveragingOptions options_;
  optim::FlatParameters* owner_;
  bool finds_owner_;
  std::vector<Entry> entries_;
  std::vector<at::Tensor> parameters_;
  int64_t n_averaged_ = 0;
  bool exchanged_ = false;
};

/// Recomputes the statistics of the module's batch normalizations from the data that `forward_all` sends through it.
/// Call it once before averaged weights are used, since they need their own statistics. The counterpart of Python's
/// update_bn. Restores the module's training mode and momenta afterwards.
void update_bn(torch::nn::Module& module, const std::function<void()>& forward_all);

}  // namespace muster
