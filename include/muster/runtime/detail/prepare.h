#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "muster/data/loader.h"
#include "muster/runtime/detail/model.h"
#include "muster/runtime/detail/optimizer.h"
#include "muster/schedule/detail/scheduler.h"

namespace muster::runtime {

class Session;

// What prepare() calls for each argument, type-erased.
std::shared_ptr<PreparedModel> prepare_model(Session& session, std::shared_ptr<torch::nn::Module> module);
Optimizer prepare_optimizer(Session& session, std::shared_ptr<torch::optim::Optimizer> optimizer);
Scheduler prepare_scheduler(Session& session, std::shared_ptr<muster::LRScheduler> scheduler);
Scheduler prepare_scheduler(Session& session, std::shared_ptr<torch::optim::LRScheduler> scheduler);
Scheduler prepare_scheduler(Session& session, std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler);
data::ShardSpec prepare_loader(Session& session, const data::LoaderState& loader);
void keep_loader(Session& session, const std::shared_ptr<data::LoaderState>& loader);

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
template <class T>
concept AnyModule =
    ModuleHolder<std::remove_cvref_t<T>> || ModulePointer<std::remove_cvref_t<T>> || ModuleType<std::remove_cvref_t<T>>;
template <class T>
concept AnyOptimizer = std::derived_from<std::remove_cvref_t<T>, torch::optim::Optimizer>;
template <class T>
concept OwnScheduler = std::derived_from<std::remove_cvref_t<T>, muster::LRScheduler>;
template <class T>
concept AnyScheduler = std::derived_from<std::remove_cvref_t<T>, torch::optim::LRScheduler>;
template <class T>
concept PlateauScheduler = std::same_as<std::remove_cvref_t<T>, torch::optim::ReduceLROnPlateauScheduler>;

/// Temporaries are moved into shared ownership; named objects are borrowed.
template <class T>
auto hold(T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::is_lvalue_reference_v<T>)
    return std::shared_ptr<V>(std::shared_ptr<void>(), std::addressof(object));
  else return std::make_shared<V>(std::move(object));
}

template <AnyModule T>
auto module_pointer(T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (ModuleHolder<V>) return object.is_empty() ? std::shared_ptr<typename V::ContainedType>() : object.ptr();
  else if constexpr (ModulePointer<V>) return V(std::forward<T>(object));
  else {
    // The module may outlive the holder it came from: prepare(*Net()).
    if constexpr (std::is_lvalue_reference_v<T>)
      if (auto owner = object.weak_from_this().lock())
        return std::shared_ptr<V>(std::move(owner), std::addressof(object));
    return hold(std::forward<T>(object));
  }
}

/// First pass: prepares modules, optimizers and loaders. Schedulers wait for the optimizers of the same call, except
/// ReduceLROnPlateauScheduler of LibTorch.
template <class T>
auto prepare_one(Session& session, T&& object) {
  if constexpr (AnyModule<T>) {
    auto pointer = module_pointer(std::forward<T>(object));
    using M = typename decltype(pointer)::element_type;
    return Model<M>(pointer, prepare_model(session, pointer));
  } else if constexpr (AnyOptimizer<T>) {
    return prepare_optimizer(session, hold(std::forward<T>(object)));
  } else if constexpr (OwnScheduler<T>) {
    return std::shared_ptr<muster::LRScheduler>(hold(std::forward<T>(object)));
  } else if constexpr (AnyScheduler<T>) {
    return std::shared_ptr<torch::optim::LRScheduler>(hold(std::forward<T>(object)));
  } else if constexpr (PlateauScheduler<T>) {
    return prepare_scheduler(session, hold(std::forward<T>(object)));
  } else if constexpr (Loader<T>) {
    auto loader = object.distributed(prepare_loader(session, *object.state()));
    keep_loader(session, loader.state());
    return loader;
  } else {
    static_assert(
        Loader<T>,
        "prepare takes modules, optimizers, schedulers and muster::DataLoader; a torch::data loader hides its "
        "sampler: give muster::DataLoader its dataset");
  }
}

/// Second pass: prepares the schedulers that waited.
template <class T>
auto finish_one(Session& session, T&& prepared) {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::same_as<V, std::shared_ptr<muster::LRScheduler>> ||
                std::same_as<V, std::shared_ptr<torch::optim::LRScheduler>>)
    return prepare_scheduler(session, std::forward<T>(prepared));
  else return std::forward<T>(prepared);
}

template <class... T>
auto prepare(Session& session, T&&... objects) {
  // Braces: left to right.
  auto first = std::tuple<decltype(prepare_one(session, std::forward<T>(objects)))...>{
      prepare_one(session, std::forward<T>(objects))...};
  auto all = std::apply(
      [&](auto&&... one) {
        return std::tuple<std::remove_cvref_t<decltype(finish_one(session, std::move(one)))>...>{
            finish_one(session, std::move(one))...};
      },
      std::move(first));
  if constexpr (sizeof...(T) == 1) return std::get<0>(std::move(all));
  else return all;
}

}  // namespace muster::runtime
