#pragma once

#include "muster/optim/flat_source.h"
#include "muster/optim/options.h"
#include "muster/tree/state.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace muster {

class AveragedModel;

/// While it lives, the module holds the averaged weights and the average holds those of training.
class [[nodiscard]] AveragedScope {
 public:
  explicit AveragedScope(AveragedModel& average);
  AveragedScope(const AveragedScope&) = delete;
  AveragedScope& operator=(const AveragedScope&) = delete;
  ~AveragedScope();

 private:
  AveragedModel& average_;
};

/// A running average of a module's weights, with the numbers of Python's torch.optim.swa_utils.AveragedModel: stochastic
/// weight averaging (Izmailov et al. 2018) or an exponential moving average. The first update takes the weights as they are.
/// Buffers take the module's latest values unless use_buffers averages them too.
/// Needs as much memory as the weights (sharded: as this rank's part of them). Thread safety: one thread at a time.
class AveragedModel {
 public:
  /// Requires: the module outlives this object and stays on its device. `source`: where parameters lie that are not, or not
  /// whole, in the module; a prepared model's `prepared()->managed` serves.
  /// Throws: ConfigError (MU140) for a decay outside of [0, 1].
  explicit AveragedModel(torch::nn::Module& module, AveragingOptions options = {}, const optim::FlatSource* source = nullptr);

  /// To be called after an optimizer step. Throws: UsageError (MU141) inside a scope.
  void update();
  /// Updates so far.
  int64_t n_averaged() const noexcept { return n_averaged_; }

  /// Evaluate inside it. Do not step an optimizer there. Throws: UsageError (MU141) inside another one, or before an update.
  AveragedScope use() { return AveragedScope(*this); }
  /// Gives the module the averaged weights for good.
  void copy_to_module();

  /// The averages by the names of parameters and buffers, and the number of updates as "n_averaged". Sharded: flat parts.
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const;
  /// Throws: UsageError (MU142) if a name is missing or has another shape; nothing is changed then.
  void load_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& state);
  /// The same for register_for_checkpointing().
  State save_state() const;
  void load_state(const State& state);

 private:
  friend class AveragedScope;
  struct Entry {
    std::string name;
    at::Tensor live, average;
    bool averaged;   // otherwise the latest value
  };
  void exchange();
  void require_outside(const char* call) const;

  AveragingOptions options_;
  std::vector<Entry> entries_;
  int64_t n_averaged_ = 0;
  bool exchanged_ = false;
};

/// Gives the module's batch normalizations the statistics of the data that `forward_all` sends through it: to be called once
/// before averaged weights are used, which have statistics of their own. As Python's update_bn.
/// The module's training mode and momenta are as before afterwards.
void update_bn(torch::nn::Module& module, const std::function<void()>& forward_all);

}  // namespace muster
