#include "parallel/sharded/units.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include "parallel/sharded/unit_boundaries.h"

namespace muster::parallel {
namespace {

using torch::nn::Module;

template <class... Norm>
bool is_one_of(const Module& module) {
  return (... || (dynamic_cast<const Norm*>(&module) != nullptr));
}

/// Whether the module sums statistics over many steps. Half precision is too coarse for them, and parameters must not
/// be coarser than statistics.
bool has_running_statistics(const Module& module) {
  namespace nn = torch::nn;
  return is_one_of<nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl,
                   nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl>(module);
}

/// One parameter: its first name, and the units around every place where it occurs, outer ones first. nullptr is the
/// root.
struct ParameterUse {
  NamedTensor parameter;
  std::vector<const Module*> units;
  bool keeps_dtype = false;
};

class ParameterUses {
 public:
  ParameterUses(const std::map<const Module*, std::string>& units, const std::set<const Module*>& ignored, bool casts)
      : units_(units), ignored_(ignored), casts_(casts) {
    for (const auto* module : ignored)
      for (const auto& parameter : module->parameters()) left_alone_.insert(parameter.unsafeGetTensorImpl());
  }

  void collect(const Module& module, const std::string& prefix, const std::vector<const Module*>& round) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      if (left_alone_.contains(parameter.value().unsafeGetTensorImpl())) continue;
      auto [place, fresh] = index_.emplace(parameter.value().unsafeGetTensorImpl(), uses_.size());
      if (fresh)
        uses_.push_back(
            {{qualified(prefix, parameter.key()), parameter.value()}, round, casts_ && has_running_statistics(module)});
      else
        std::erase_if(uses_[place->second].units,
                      [&](const Module* unit) { return std::find(round.begin(), round.end(), unit) == round.end(); });
    }
    for (const auto& child : module.named_children()) {
      if (ignored_.contains(child.value().get())) continue;
      auto within = round;
      if (units_.contains(child.value().get())) within.push_back(child.value().get());
      collect(*child.value(), qualified(prefix, child.key()), within);
    }
  }
  const std::vector<ParameterUse>& all() const { return uses_; }

 private:
  const std::map<const Module*, std::string>& units_;
  const std::set<const Module*>& ignored_;
  bool casts_;
  std::set<const c10::TensorImpl*> left_alone_;
  std::map<const c10::TensorImpl*, size_t> index_;  // by impl, which is the identity of a tensor
  std::vector<ParameterUse> uses_;
};

}  // namespace

std::vector<UnitPlan> plan_units(const Module& module, const ShardedOptions& options) {
  const auto boundaries = unit_boundaries(module, options);
  const auto ignored = ignored_modules(module, options);
  ParameterUses uses(boundaries, ignored, !options.param_dtype.empty());
  uses.collect(module, "", {nullptr});

  std::vector<UnitPlan> plans;
  std::map<std::tuple<const Module*, at::ScalarType, at::DeviceType, int, bool, bool>, size_t> index;
  for (const auto& use : uses.all()) {
    const auto& tensor = use.parameter.tensor;
    const auto* unit = use.units.back();
    const auto key = std::tuple(unit, tensor.scalar_type(), tensor.device().type(), int{tensor.device().index()},
                                tensor.requires_grad(), use.keeps_dtype);
    auto [place, fresh] = index.emplace(key, plans.size());
    if (fresh) plans.push_back({unit ? boundaries.at(unit) : "root", unit == nullptr, {}, use.keeps_dtype});
    plans[place->second].parameters.push_back(use.parameter);
  }
  std::stable_partition(plans.begin(), plans.end(), [](const UnitPlan& plan) { return plan.root; });
  return plans;
}

std::vector<at::Tensor> buffers_to_convert(const Module& module, const ShardedOptions& options) {
  if (options.buffer_dtype.empty()) return {};
  std::vector<at::Tensor> buffers;
  std::set<const c10::TensorImpl*> seen;
  const auto ignored = ignored_modules(module, options);
  const std::function<void(const Module&)> collect = [&](const Module& within) {
    if (ignored.contains(&within)) return;
    if (!has_running_statistics(within))
      for (const auto& buffer : within.buffers(/*recurse=*/false))
        if (buffer.defined() && buffer.is_floating_point() && seen.insert(buffer.unsafeGetTensorImpl()).second)
          buffers.push_back(buffer);
    for (const auto& child : within.children()) collect(*child);
  };
  collect(module);
  return buffers;
}

}  // namespace muster::parallel
