#include "parallel/sharded/units.h"

#include <thread>
#include <tuple>
#include <unordered_map>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/instancenorm.h>

#include "base/mutex.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "muster/parallel/wrap.h"
#include "tree/submodules.h"

namespace muster::parallel {
namespace {

struct Mark {
  std::weak_ptr<torch::nn::Module> module;
  std::thread::id thread;
  bool claimed = false;
};

// Marks are stored here because a module has no place for a mark, and a model and its user hold different pointers to
// it.
struct Marks {
  base::Mutex mutex;
  std::unordered_map<const torch::nn::Module*, Mark> all MUSTER_GUARDED_BY(mutex);
};

Marks& marks() {
  // Never destroyed: modules may outlive other static objects.
  static Marks* const only = new Marks;
  return *only;
}

Mark* find_mark(Marks& marks, const torch::nn::Module& module) MUSTER_REQUIRES(marks.mutex) {
  const auto found = marks.all.find(&module);
  return found == marks.all.end() || found->second.module.expired() ? nullptr : &found->second;
}

}  // namespace

void mark_unit(const std::shared_ptr<torch::nn::Module>& module) {
  auto& known = marks();
  const base::Lock lock(known.mutex);
  std::erase_if(known.all, [](const auto& entry) { return entry.second.module.expired(); });
  known.all.try_emplace(module.get(), Mark{module, std::this_thread::get_id()});
}

bool is_unit(const torch::nn::Module& module) {
  auto& known = marks();
  const base::Lock lock(known.mutex);
  return find_mark(known, module) != nullptr;
}

bool claim_mark(const torch::nn::Module& module) {
  auto& known = marks();
  const base::Lock lock(known.mutex);
  auto* mark = find_mark(known, module);
  if (mark) mark->claimed = true;
  return mark != nullptr;
}

std::vector<std::string> take_lost_marks() {
  std::vector<std::shared_ptr<torch::nn::Module>>
      lost;  // destroyed after the lock is released: the last owner may run a module's destructor
  {
    auto& known = marks();
    const base::Lock lock(known.mutex);
    for (auto& [_, mark] : known.all)
      if (auto module = mark.claimed || mark.thread != std::this_thread::get_id() ? nullptr : mark.module.lock()) {
        mark.claimed = true;
        lost.push_back(std::move(module));
      }
  }
  std::vector<std::string> names;
  for (const auto& module : lost) names.push_back(module->name());
  return names;
}

namespace {

using torch::nn::Module;
using Boundaries = tree::NamedModules;

/// Draws boundaries by size, from the inside out.
class BySize {
 public:
  BySize(int64_t least, Boundaries& units) : least_(least), units_(units) {}

  /// Number of elements that are not in an inner unit. Each parameter counts where it first occurs.
  int64_t rest(const Module& module, const std::string& prefix) {
    int64_t elements = 0;
    for (const auto& parameter : module.parameters(/*recurse=*/false))
      if (seen_.insert(parameter.unsafeGetTensorImpl()).second) elements += parameter.numel();
    const bool leaf = dynamic_cast<const torch::nn::MultiheadAttentionImpl*>(&module) != nullptr;
    for (const auto& child : module.named_children()) {
      const auto name = tree::qualified(prefix, child.key());
      const auto within = rest(*child.value(), name);
      if (units_.contains(child.value().get())) continue;
      if (!leaf && within >= least_ && !is_list(*child.value())) units_.emplace(child.value().get(), name);
      else elements += within;
    }
    return elements;
  }

 private:
  static bool is_list(const Module& module) {
    return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) ||
           dynamic_cast<const torch::nn::ModuleDictImpl*>(&module);
  }

  int64_t least_;
  Boundaries& units_;
  std::set<const c10::TensorImpl*> seen_;
};

int64_t elements_of(const Module& module) {
  int64_t elements = 0;
  for (const auto& parameter : module.parameters()) elements += parameter.numel();
  return elements;
}

/// Makes large layers units. In the root, the table of an embedding and the head would wait for each other, although
/// one is used first and the other last.
void add_large_layers(const std::vector<tree::Submodule>& places, Boundaries& units) {
  std::set<const Module*> within;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [unit, name] : units) {
    least = std::min(least, elements_of(*unit));
    for (const auto& module : unit->modules()) within.insert(module.get());
  }
  for (const auto& [name, module] : places)
    if (module->children().empty() && !within.contains(module.get()) && elements_of(*module) >= least)
      units.emplace(module.get(), name);
}

bool has_policy(const ShardedOptions& options) {
  return !options.unit_classes.empty() || options.unit_min_elements > 0 || !options.unit_names.empty() ||
         options.unit_predicate || !options.unit_types.empty();
}

}  // namespace

std::map<const Module*, std::string> unit_boundaries(const Module& root, const ShardedOptions& options) {
  const auto places = tree::submodules_of(root);
  Boundaries units;
  const auto add = [&](const tree::Submodule& place) { units.emplace(place.module.get(), place.name); };
  claim_mark(root);
  for (const auto& place : places)
    if (claim_mark(*place.module) || (options.unit_predicate && options.unit_predicate(place.name, *place.module)))
      add(place);
  for (const auto& name : options.unit_names) tree::each_named(root, places, "unit_names", name, add);
  for (const auto& name : options.unit_classes) tree::each_of_class(root, places, "unit_classes", name, add);
  for (const auto& type : options.unit_types) tree::each_of_type(root, places, "unit_types", type, add);
  if (options.unit_min_elements > 0) BySize(options.unit_min_elements, units).rest(root, "");
  if (units.empty() && !has_policy(options) && options.auto_wrap) {
    units = tree::repeated_modules(root);
    add_large_layers(places, units);
  }
  return units;
}

std::set<const Module*> ignored_modules(const Module& root, const ShardedOptions& options) {
  std::set<const Module*> ignored;
  const auto places = tree::submodules_of(root);
  for (const auto& name : options.ignored_modules)
    tree::each_named(root, places, "ignored_modules", name,
                     [&](const tree::Submodule& place) { ignored.insert(place.module.get()); });
  return ignored;
}

namespace {

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
        uses_.push_back({{tree::qualified(prefix, parameter.key()), parameter.value()},
                         round,
                         casts_ && has_running_statistics(module)});
      else
        std::erase_if(uses_[place->second].units,
                      [&](const Module* unit) { return std::find(round.begin(), round.end(), unit) == round.end(); });
    }
    for (const auto& child : module.named_children()) {
      if (ignored_.contains(child.value().get())) continue;
      auto within = round;
      if (units_.contains(child.value().get())) within.push_back(child.value().get());
      collect(*child.value(), tree::qualified(prefix, child.key()), within);
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
