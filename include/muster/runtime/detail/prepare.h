#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "muster/data/data_loader.h"
#include "muster/runtime/detail/argument.h"
#include "muster/runtime/detail/function_argument.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"

namespace muster::runtime {

class RuntimeState;

// The type-erased functions that prepare() calls for each argument.
std::shared_ptr<PreparedModel> prepare_model(RuntimeState& state, const std::shared_ptr<torch::nn::Module>& module);
Optimizer prepare_optimizer(RuntimeState& state, std::shared_ptr<torch::optim::Optimizer> optimizer);
Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<muster::LRScheduler> scheduler);
Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<torch::optim::LRScheduler> scheduler);
Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler);
std::shared_ptr<const data::ShardSpec> prepare_loader(RuntimeState& state, const data::LoaderState& loader);
void keep_loader(RuntimeState& state, const std::shared_ptr<data::LoaderState>& loader,
                 std::optional<int64_t> place = 0);

/// First pass: prepares modules, optimizers and loaders. Schedulers wait for the optimizers of the same call, except
/// ReduceLROnPlateauScheduler of LibTorch. Functions are called; `done` holds the results of earlier arguments.
template <class T, class... Done>
auto prepare_one(RuntimeState& state, std::tuple<Done...>& done, T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (ScriptModule<T>) {
    static_assert(
        !ScriptModule<T>,
        "prepare takes no torch::jit::Module, whose forward runs outside of LibTorch's C++ modules: write the "
        "network as a torch::nn::Module, prepare that, and read the weights from a file of torch.save by "
        "load_model(model, path)");
  } else if constexpr (ModuleLike<T>) {
    auto pointer = module_pointer(std::forward<T>(object));
    auto prepared = prepare_model(state, pointer);
    if constexpr (TorchAnyModule<T>) return Model<V>(object, std::move(prepared));
    else return Model<typename decltype(pointer)::element_type>(std::move(pointer), std::move(prepared));
  } else if constexpr (AnyOptimizer<T>) {
    return prepare_optimizer(state, to_shared_ptr(std::forward<T>(object)));
  } else if constexpr (MusterScheduler<T>) {
    return std::shared_ptr<muster::LRScheduler>(to_shared_ptr(std::forward<T>(object)));
  } else if constexpr (AnyScheduler<T>) {
    return std::shared_ptr<torch::optim::LRScheduler>(to_shared_ptr(std::forward<T>(object)));
  } else if constexpr (PlateauScheduler<T>) {
    return prepare_scheduler(state, to_shared_ptr(std::forward<T>(object)));
  } else if constexpr (Loader<T>) {
    auto loader = object.distributed(*prepare_loader(state, *object.state()));
    keep_loader(state, loader.state());
    return loader;
  } else if constexpr (SchedulerFunction<T>) {
    auto scheduler = scheduler_by(std::forward<T>(object), done);
    if constexpr (PlateauScheduler<typename decltype(scheduler)::element_type>)
      return prepare_scheduler(state, std::move(scheduler));
    else return scheduler;
  } else if constexpr (AnyFunction<T>) {
    // The second type tells a later function for the nearest module that this function has taken it.
    using Made = std::conditional_t<ModuleFunction<T>, Optimizer, OptimizerFromFunction>;
    return Made{prepare_optimizer(state, optimizer_by(std::forward<T>(object), done))};
  } else {
    static_assert(
        Loader<T>,
        "prepare takes modules, optimizers, schedulers and muster::DataLoader; a torch::data loader hides its "
        "sampler: give muster::DataLoader its dataset");
  }
}

/// Second pass: prepares the schedulers that waited.
template <class T>
auto finish_one(RuntimeState& state, T&& prepared) {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::same_as<V, std::shared_ptr<muster::LRScheduler>> ||
                std::same_as<V, std::shared_ptr<torch::optim::LRScheduler>>)
    return prepare_scheduler(state, std::forward<T>(prepared));
  else if constexpr (std::same_as<V, OptimizerFromFunction>) return Optimizer(std::forward<T>(prepared));
  else return std::forward<T>(prepared);
}

/// Appends the results of the first pass to `done`, from left to right.
template <class... Done>
auto prepare_each(RuntimeState&, std::tuple<Done...> done) {
  return done;
}
template <class... Done, class T, class... Rest>
auto prepare_each(RuntimeState& state, std::tuple<Done...> done, T&& object, Rest&&... rest) {
  using R = decltype(prepare_one(state, done, std::forward<T>(object)));
  std::tuple<R> one(prepare_one(state, done, std::forward<T>(object)));
  return prepare_each(state, std::tuple_cat(std::move(done), std::move(one)), std::forward<Rest>(rest)...);
}

template <class... T>
auto prepare(RuntimeState& state, T&&... objects) {
  auto all = std::apply(
      [&](auto&&... one) {
        return std::tuple<std::remove_cvref_t<decltype(finish_one(state, std::move(one)))>...>{
            finish_one(state, std::move(one))...};
      },
      prepare_each(state, std::tuple<>(), std::forward<T>(objects)...));
  if constexpr (sizeof...(T) == 1) return std::get<0>(std::move(all));
  else return all;
}

}  // namespace muster::runtime
