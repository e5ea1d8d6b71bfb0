#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "muster/data/data_loader.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"

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

// Functions among the arguments of prepare(). The type of a function's parameter determines what it makes. With
// torch::optim::Optimizer& it makes a scheduler of the nearest optimizer before it; with a module's class (NetImpl&,
// Net) an optimizer of the nearest such module before it; with any other type, or a generic one, an optimizer of the
// nearest module before it, and it is called with that module's parameters. See
// docs/decisions/0081-functions-handles-and-batches.md.

struct OptimizerFromFunction : Optimizer {};  ///< made by a function for the nearest module before it

namespace detail {
struct Call {
  void operator()();
};
template <class F>
struct WithCall : F, Call {};

template <class F>
consteval bool is_callable() {
  if constexpr (std::is_function_v<std::remove_pointer_t<F>>) return true;
  else if constexpr (!std::is_class_v<F>) return false;
  else if constexpr (std::is_final_v<F>) return requires { &F::operator(); };
  else return !requires { &WithCall<F>::operator(); };  // ambiguous if F has one, a template or not
}

/// The first parameter of a function; void if it has none.
template <class F>
struct First {
  using type = void;
};
template <class R, class A, class... B>
struct First<std::function<R(A, B...)>> {
  using type = A;
};
template <class F>
struct Named {
  using type = void;
};
// Not for a generic operator(), whose parameter types are not declared.
template <class F>
  requires requires(F& function) { std::function(function); }
struct Named<F> : First<decltype(std::function(std::declval<F&>()))> {};

template <class P>
struct NamedModule {
  using type = P;
};
template <ModuleHolder P>
struct NamedModule<P> {
  using type = typename P::ContainedType;
};

template <class M, class T>
inline constexpr bool is_model_of = false;
template <class M, class N>
inline constexpr bool is_model_of<M, Model<N>> =
    std::derived_from<std::remove_reference_t<decltype(*std::declval<Model<N>>())>, M>;

/// The index of the last true value; -1 if all are false.
template <bool... B>
consteval int last_true() {
  int found = -1, at = 0;
  return ((found = B ? at : found, ++at), ...), found;
}
}  // namespace detail

/// The type of a function's first parameter, without reference; void for a generic function.
template <class F>
using named_t = std::remove_cvref_t<typename detail::Named<std::remove_reference_t<F>>::type>;

template <class T>
concept AnyFunction = !ModuleLike<T> && !Loader<T> && detail::is_callable<std::remove_cvref_t<T>>();
template <class T>
concept SchedulerFunction = AnyFunction<T> && std::derived_from<named_t<T>, torch::optim::Optimizer>;
template <class T>
concept ModuleFunction = AnyFunction<T> && (ModuleType<named_t<T>> || ModuleHolder<named_t<T>>);

/// Returns shared ownership of a function's result: a value or, for a class chosen at run time, a smart pointer.
/// Throws: ConfigError (MU326) for an empty pointer.
void require_made(const void* object);
template <class B, class R>
std::shared_ptr<B> made(R&& result) {
  if constexpr (std::derived_from<std::remove_cvref_t<R>, B>) {
    return to_shared_ptr(std::forward<R>(result));
  } else {
    std::shared_ptr<B> pointer = std::forward<R>(result);
    require_made(pointer.get());
    return pointer;
  }
}
template <class R, class B>
concept Makes = std::derived_from<std::remove_cvref_t<R>, B> || std::convertible_to<R, std::shared_ptr<B>>;

template <class R>
auto made_optimizer(R&& result) {
  static_assert(Makes<R, torch::optim::Optimizer>,
                "a function given to prepare makes an optimizer, which it returns by value or in a smart pointer: "
                "[](auto parameters) { return torch::optim::AdamW(parameters, 1e-3); }; for a scheduler, name the "
                "parameter: [](torch::optim::Optimizer& optimizer) { ... }");
  if constexpr (Makes<R, torch::optim::Optimizer>) return made<torch::optim::Optimizer>(std::forward<R>(result));
}

/// Calls a function that makes an optimizer of one of the models that were prepared before it.
template <class F, class... Done>
auto optimizer_by(F&& function, std::tuple<Done...>& done) {
  if constexpr (ModuleFunction<F>) {
    using M = typename detail::NamedModule<named_t<F>>::type;
    constexpr int at = detail::last_true<detail::is_model_of<M, Done>...>();
    static_assert(at >= 0,
                  "a function given to prepare names a module, and no module of this class stands before it: "
                  "prepare(Net(), [](NetImpl& net) { ... })");
    if constexpr (at >= 0) {
      std::shared_ptr<M> module = std::get<at>(done).ptr();
      if constexpr (ModuleHolder<named_t<F>>) {
        named_t<F> holder(std::move(module));
        return made_optimizer(std::invoke(std::forward<F>(function), holder));
      } else {
        return made_optimizer(std::invoke(std::forward<F>(function), *module));
      }
    }
  } else {
    constexpr int at = detail::last_true<detail::is_model_of<torch::nn::Module, Done>...>();
    static_assert(at >= 0,
                  "a function given to prepare makes an optimizer of the module before it, and no module stands "
                  "there: prepare(Net(), [](auto parameters) { ... })");
    constexpr int without =
        (0 + ... + (detail::is_model_of<torch::nn::Module, Done> - std::derived_from<Done, Optimizer>));
    static_assert(without <= 0 || detail::last_true<std::same_as<Done, OptimizerFromFunction>...>() <= at,
                  "two functions given to prepare would make optimizers of one module, the nearest before both, and "
                  "another would have none: let each stand after its module, or name its class: [](NetImpl& net)");
    if constexpr (at >= 0) {
      constexpr bool callable = std::invocable<F, std::vector<at::Tensor>>;
      static_assert(callable,
                    "a function given to prepare takes one argument: the parameters of the module before it, a "
                    "std::vector<torch::Tensor> by value, to make an optimizer; the module itself, as NetImpl&, to "
                    "build its parameter groups; or torch::optim::Optimizer&, to make a scheduler");
      if constexpr (callable)
        return made_optimizer(std::invoke(std::forward<F>(function), std::get<at>(done).parameters()));
    }
  }
}

/// A scheduler that also owns the optimizer whose rates it sets.
template <class B>
std::shared_ptr<B> keeping(const Optimizer& optimizer, std::shared_ptr<B> scheduler) {
  auto both = std::make_shared<std::pair<Optimizer, std::shared_ptr<B>>>(optimizer, std::move(scheduler));
  return {both, both->second.get()};
}

/// Calls a function that makes a scheduler of the last optimizer that was prepared before it.
template <class F, class... Done>
auto scheduler_by(F&& function, std::tuple<Done...>& done) {
  constexpr int at = detail::last_true<std::derived_from<Done, Optimizer>...>();
  static_assert(at >= 0,
                "a function given to prepare makes a scheduler of the optimizer before it, and no optimizer stands "
                "there: prepare(Net(), make_optimizer, make_scheduler)");
  if constexpr (at >= 0) {
    constexpr bool callable = std::invocable<F, torch::optim::Optimizer&>;
    static_assert(callable,
                  "a function given to prepare makes a scheduler of any optimizer: let it take one argument, "
                  "torch::optim::Optimizer&");
    if constexpr (callable) {
      const Optimizer& optimizer = std::get<at>(done);
      using R = std::invoke_result_t<F, torch::optim::Optimizer&>;
      const auto make = [&]<class B>(std::type_identity<B>) {
        return keeping(optimizer, made<B>(std::invoke(std::forward<F>(function), *optimizer)));
      };
      if constexpr (Makes<R, muster::LRScheduler>) return make(std::type_identity<muster::LRScheduler>());
      else if constexpr (Makes<R, torch::optim::LRScheduler>)
        return make(std::type_identity<torch::optim::LRScheduler>());
      else if constexpr (Makes<R, torch::optim::ReduceLROnPlateauScheduler>)
        return make(std::type_identity<torch::optim::ReduceLROnPlateauScheduler>());
      else
        static_assert(
            Makes<R, muster::LRScheduler>,
            "a function given to prepare that takes torch::optim::Optimizer& returns a scheduler of Muster or "
            "LibTorch, by value or in a smart pointer");
    }
  }
}

class RuntimeState;

// The type-erased functions that prepare() calls for each argument.
std::shared_ptr<PreparedModel> prepare_model(RuntimeState& state, const std::shared_ptr<torch::nn::Module>& module,
                                             bool moves);
Optimizer prepare_optimizer(RuntimeState& state, std::shared_ptr<torch::optim::Optimizer> optimizer);
Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<muster::LRScheduler> scheduler);
Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<torch::optim::LRScheduler> scheduler);
Scheduler prepare_scheduler(RuntimeState& state, std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler);
std::shared_ptr<data::LoaderState> prepare_loader(RuntimeState& state, const data::LoaderState& loader, bool moves);

/// First pass: prepares modules, optimizers and loaders. Schedulers wait for the optimizers of the same call, except
/// ReduceLROnPlateauScheduler of LibTorch. Functions are called; `done` holds the results of earlier arguments.
/// `moves`: modules and batches go to the device.
template <class T, class... Done>
auto prepare_one(RuntimeState& state, std::tuple<Done...>& done, bool moves, T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (ScriptModule<T>) {
    static_assert(
        !ScriptModule<T>,
        "prepare takes no torch::jit::Module, whose forward runs outside of LibTorch's C++ modules: write the "
        "network as a torch::nn::Module, prepare that, and read the weights from a file of torch.save by "
        "load_model(model, path)");
  } else if constexpr (ModuleLike<T>) {
    auto pointer = module_pointer(std::forward<T>(object));
    auto prepared = prepare_model(state, pointer, moves);
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
    return V(prepare_loader(state, *object.state(), moves));
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
auto prepare_each(RuntimeState&, const std::vector<bool>&, std::tuple<Done...> done) {
  return done;
}
template <class... Done, class T, class... Rest>
auto prepare_each(RuntimeState& state, const std::vector<bool>& moves, std::tuple<Done...> done, T&& object,
                  Rest&&... rest) {
  using R = decltype(prepare_one(state, done, true, std::forward<T>(object)));
  std::tuple<R> one(prepare_one(state, done, moves[sizeof...(Done)], std::forward<T>(object)));
  return prepare_each(state, moves, std::tuple_cat(std::move(done), std::move(one)), std::forward<Rest>(rest)...);
}

/// `moves`: one answer for each object; see prepare_one().
template <class... T>
auto prepare(RuntimeState& state, const std::vector<bool>& moves, T&&... objects) {
  auto all = std::apply(
      [&](auto&&... one) {
        return std::tuple<std::remove_cvref_t<decltype(finish_one(state, std::move(one)))>...>{
            finish_one(state, std::move(one))...};
      },
      prepare_each(state, moves, std::tuple<>(), std::forward<T>(objects)...));
  if constexpr (sizeof...(T) == 1) return std::get<0>(std::move(all));
  else return all;
}

}  // namespace muster::runtime
