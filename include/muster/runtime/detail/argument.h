#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "muster/data/data_loader.h"
#include "muster/runtime/model.h"

namespace muster {
class LRScheduler;
}
namespace torch::jit {
struct Module;
}

/// The kinds of objects that prepare() takes.
namespace muster::runtime {

template <class H>
concept ModuleHolder = requires(H h) {
  typename H::ContainedType;
  h.ptr();
};
template <class P>
concept ModulePointer = requires(P p) {
  typename P::element_type;
  requires ModuleType<typename P::element_type>;
  p.use_count();
};
template <class T>
concept Loader = is_data_loader<std::remove_cvref_t<T>>;
/// A module whose forward is found at run time.
template <class T>
concept TorchAnyModule = std::same_as<std::remove_cvref_t<T>, torch::nn::AnyModule>;
template <class T>
concept ScriptModule = std::same_as<std::remove_cvref_t<T>, torch::jit::Module>;
template <class T>
concept ModuleLike = TorchAnyModule<T> || ModuleHolder<std::remove_cvref_t<T>> ||
                     ModulePointer<std::remove_cvref_t<T>> || ModuleType<std::remove_cvref_t<T>>;
/// A module, or a ScriptModule, which prepare() refuses with a specific message.
template <class T>
concept ModuleArgument = ModuleLike<T> || ScriptModule<T>;
template <class T>
concept AnyOptimizer = std::derived_from<std::remove_cvref_t<T>, torch::optim::Optimizer>;
template <class T>
concept MusterScheduler = std::derived_from<std::remove_cvref_t<T>, muster::LRScheduler>;
template <class T>
concept AnyScheduler = std::derived_from<std::remove_cvref_t<T>, torch::optim::LRScheduler>;
template <class T>
concept PlateauScheduler = std::same_as<std::remove_cvref_t<T>, torch::optim::ReduceLROnPlateauScheduler>;

/// Returns a shared pointer: temporaries are moved into shared ownership; named objects are borrowed.
template <class T>
auto to_shared_ptr(T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::is_lvalue_reference_v<T>)
    return std::shared_ptr<V>(std::shared_ptr<void>(), std::addressof(object));
  else return std::make_shared<V>(std::forward<T>(object));
}

template <ModuleLike T>
auto module_pointer(T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (TorchAnyModule<V>) return object.is_empty() ? std::shared_ptr<torch::nn::Module>() : object.ptr();
  else if constexpr (ModuleHolder<V>)
    return object.is_empty() ? std::shared_ptr<typename V::ContainedType>() : object.ptr();
  else if constexpr (ModulePointer<V>) return V(std::forward<T>(object));
  else {
    // The module may outlive the holder it came from: prepare(*Net()).
    if constexpr (std::is_lvalue_reference_v<T>)
      if (auto owner = object.weak_from_this().lock())
        return std::shared_ptr<V>(std::move(owner), std::addressof(object));
    return to_shared_ptr(std::forward<T>(object));
  }
}

}  // namespace muster::runtime
