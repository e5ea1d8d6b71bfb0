#include "parallel/units.h"

#include "muster/parallel/wrap.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <typeindex>

namespace muster::parallel {
namespace {

using torch::nn::Module;

std::string join(const std::string& prefix, const std::string& name) { return prefix.empty() ? name : prefix + "." + name; }

/// Calls f(name, module, pointer) for every module below this one, outer ones first; a reused module once per place.
/// Module::named_modules would throw for a module that no shared_ptr owns.
template <class F>
void walk(const Module& module, const std::string& prefix, F&& f) {
  for (const auto& child : module.named_children()) {
    const auto name = join(prefix, child.key());
    f(name, *child.value(), child.value());
    walk(*child.value(), name, f);
  }
}

std::map<const Module*, std::string> marked_modules(const Module& root) {
  std::map<const Module*, std::string> units;
  walk(root, "", [&](const std::string& name, const Module& module, const std::shared_ptr<Module>& pointer) {
    if (is_unit(pointer)) units.emplace(&module, name);
  });
  return units;
}

/// Does not look for blocks within blocks.
void find_repeated(const Module& parent, const std::string& prefix, std::map<const Module*, std::string>& units) {
  const bool container = dynamic_cast<const torch::nn::SequentialImpl*>(&parent) || dynamic_cast<const torch::nn::ModuleListImpl*>(&parent);
  const auto candidate = [&](const Module& child) {
    return !child.parameters().empty() && (container || !child.children().empty());
  };
  std::map<std::type_index, std::set<const Module*>> of_type;
  const auto children = parent.named_children();
  for (const auto& child : children)
    if (const Module& module = *child.value(); candidate(module)) of_type[typeid(module)].insert(&module);
  for (const auto& child : children) {
    const Module& module = *child.value();
    if (candidate(module) && of_type[typeid(module)].size() > 1)
      units.emplace(&module, join(prefix, child.key()));
    else
      find_repeated(module, join(prefix, child.key()), units);
  }
}

/// One parameter: its first name and the units in which it was met.
struct Claim {
  NamedTensor parameter;
  std::set<std::string> units;
};

class Claims {
 public:
  explicit Claims(const std::map<const Module*, std::string>& units) : units_(units) {}

  void collect(const Module& module, const std::string& prefix, const std::string& unit) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      auto [place, fresh] = index_.emplace(parameter.value().unsafeGetTensorImpl(), claims_.size());
      if (fresh) claims_.push_back({{join(prefix, parameter.key()), parameter.value()}, {}});
      claims_[place->second].units.insert(unit);
    }
    for (const auto& child : module.named_children()) {
      auto own = units_.find(child.value().get());
      collect(*child.value(), join(prefix, child.key()), own == units_.end() ? unit : own->second);
    }
  }
  const std::vector<Claim>& all() const { return claims_; }

 private:
  const std::map<const Module*, std::string>& units_;
  std::map<const c10::TensorImpl*, size_t> index_;
  std::vector<Claim> claims_;
};

}  // namespace

std::vector<UnitPlan> plan_units(const Module& module, bool find_blocks) {
  auto boundaries = marked_modules(module);
  if (boundaries.empty() && find_blocks) find_repeated(module, "", boundaries);
  Claims claims(boundaries);
  claims.collect(module, "", "");

  std::vector<UnitPlan> plans;
  std::map<std::tuple<std::string, at::ScalarType, at::DeviceType, int>, size_t> index;
  for (const auto& claim : claims.all()) {
    const auto& tensor = claim.parameter.tensor;
    const auto unit = claim.units.size() == 1 ? *claim.units.begin() : std::string();
    const auto key = std::tuple(unit, tensor.scalar_type(), tensor.device().type(), int{tensor.device().index()});
    auto [place, fresh] = index.emplace(key, plans.size());
    if (fresh) plans.push_back({unit.empty() ? "root" : unit, unit.empty(), {}});
    plans[place->second].parameters.push_back(claim.parameter);
  }
  std::stable_partition(plans.begin(), plans.end(), [](const UnitPlan& plan) { return plan.root; });
  return plans;
}

}  // namespace muster::parallel
