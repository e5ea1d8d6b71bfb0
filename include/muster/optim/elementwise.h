#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace muster {

/// The options of a user-defined optimizer: numbers by name, saved and loaded under these names. Schedulers set "lr".
class ElementwiseOptions : public torch::optim::OptimizerOptions {
 public:
  ElementwiseOptions() = default;
  /// {{"lr", 1e-4}, {"beta", 0.9}}
  ElementwiseOptions(std::initializer_list<std::pair<const std::string, double>> values) : values_(values) {}
  /// Throws: ConfigError (MU199), listing the known names, for any other.
  double at(const std::string& name) const;
  void set(const std::string& name, double value);
  std::map<std::string, double>& values() noexcept { return values_; }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return at("lr"); }
  void set_lr(const double lr) override { set("lr", lr); }

 private:
  std::map<std::string, double> values_;
};

/// The state that an ElementwiseOptimizer keeps for one parameter.
struct ElementwiseState : torch::optim::OptimizerParamState {
  ElementwiseState() = default;
  explicit ElementwiseState(const std::vector<std::string>& names);
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;

  int64_t step = 0;  ///< updates so far
  std::vector<std::pair<std::string, at::Tensor>>
      tensors;  ///< in the order of state_names(); undefined before the first update
};

/// One update of elements that are contiguous in memory. All tensors are 1-D and have equal length, dtype and device.
/// The parameter layout determines which elements of which parameters they hold.
struct ElementwiseUpdate {
  at::Tensor value;     ///< to be changed in place
  at::Tensor gradient;  ///< not to be changed
  std::vector<at::Tensor>
      states;        ///< to be changed in place, in the order of state_names(); zero before the first update
  int64_t step = 1;  ///< the number of this update, from 1
};

/// Base class of a custom optimizer whose update of an element depends only on that element's value, gradient and
/// states, the number of updates and the options. Muster relies on this: it runs update() on the part of the parameters
/// that a rank holds, whole or sharded, with equal results.
///
///   struct Lion : muster::ElementwiseOptimizer {
///     explicit Lion(std::vector<at::Tensor> parameters, double lr)
///         : ElementwiseOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, {{"lr", lr}, {"beta",
///         0.9}}, {"exp_avg"}) {}
///     void update(const muster::ElementwiseOptions& options, const muster::ElementwiseUpdate& u) override {
///       u.value.sub_(u.states[0].lerp(u.gradient, 0.1).sign_(), options.at("lr"));
///       u.states[0].lerp_(u.gradient, 1 - options.at("beta"));
///     }
///   };
///
/// The class is an ordinary LibTorch optimizer and also works without Muster. state_dict() saves its state under the
/// state names.
class ElementwiseOptimizer : public torch::optim::Optimizer {
 public:
  static constexpr size_t kMaxStates = 8;

  /// `state_names`: the name of each tensor that is kept per parameter.
  /// Throws: ConfigError (MU199) for more than kMaxStates or equal names, for options without "lr", or for a group with
  /// options of another class.
  ElementwiseOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, const ElementwiseOptions& defaults,
                       std::vector<std::string> state_names);

  /// Called with gradient recording off.
  virtual void update(const ElementwiseOptions& options, const ElementwiseUpdate& update) = 0;

  at::Tensor step(LossClosure closure = nullptr) final;
  const std::vector<std::string>& state_names() const noexcept { return state_names_; }

 private:
  void update_full(const at::Tensor& parameter, const ElementwiseOptions& options);

  std::vector<std::string> state_names_;
};

}  // namespace muster
