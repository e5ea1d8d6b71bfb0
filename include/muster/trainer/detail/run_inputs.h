#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "muster/trainer/data_module.h"
#include "muster/trainer/detail/combined_loader.h"

namespace muster::trainer {

/// Returns a pointer to a module or data module, given as a TORCH_MODULE, a shared_ptr, an object (borrowed) or a
/// temporary (kept).
template <class T>
auto object_pointer(T&& object) {
  using V = std::remove_cvref_t<T>;
  if constexpr (requires { typename V::ContainedType; }) return object.ptr();
  else if constexpr (requires { typename V::element_type; })
    return std::shared_ptr<typename V::element_type>(std::forward<T>(object));
  else if constexpr (std::is_lvalue_reference_v<T>)
    return std::shared_ptr<V>(std::shared_ptr<void>(), std::addressof(object));
  else return std::make_shared<V>(std::forward<T>(object));
}
template <class T>
using object_of = typename decltype(object_pointer(std::declval<T>()))::element_type;

/// The type-erased module and data of a run.
struct RunInputs {
  std::shared_ptr<TrainerModule> module;
  std::shared_ptr<DataModule> data = {};
  void* transfer_owner = nullptr;  ///< argument of StepTable::transfer
  std::array<std::function<CombinedLoader()>, kStepKinds> loaders =
      {};                                            ///< by StepKind: functions that create them; empty: no loaders
  std::array<bool, kStepKinds> unused_loaders = {};  ///< by StepKind: whether existing loaders are left out
  std::array<bool, kStepKinds> steps = {};           ///< by StepKind: the module has the step (predict: always)
  /// By StepKind: whether on_validation_model_train, or the function of the other kind, is overridden.
  std::array<bool, kStepKinds> sets_train_mode = {};
};

/// Takes the outputs of an evaluation's batches, for predict().
using KeepOutput = std::function<void(StepOutput&, int64_t dataloader_idx)>;

/// Whether M inherits the virtual member from TrainerModule.
#define MUSTER_TRAINER_INHERITS(M, name) \
  requires { requires std::same_as<decltype(&M::name), decltype(&TrainerModule::name)>; }

template <class M>
RunInputs inputs_of(std::shared_ptr<M> module) {
  static_assert(std::derived_from<M, TrainerModule>,
                "a Trainer takes objects of classes derived from muster::TrainerModule");
  static_assert(MUSTER_TRAINER_INHERITS(M, configure_model) || MUSTER_TRAINER_INHERITS(M, configure_sharded_model),
                "configure_sharded_model() is the older name of configure_model(): override one of them, not both");
  RunInputs inputs{.module = module, .transfer_owner = module.get()};
  inputs.steps = {member::training_step::in<M>, member::validation_step::in<M>, member::test_step::in<M>, true};
  inputs.sets_train_mode = {false, !MUSTER_TRAINER_INHERITS(M, on_validation_model_train),
                            !MUSTER_TRAINER_INHERITS(M, on_test_model_train),
                            !MUSTER_TRAINER_INHERITS(M, on_predict_model_train)};
  return inputs;
}
#undef MUSTER_TRAINER_INHERITS

template <class M, StepKind K, class D, class L>
void set_loaders(RunInputs& inputs, L loaders) {
  inputs.loaders[static_cast<std::size_t>(K)] = [loaders = std::move(loaders)] {
    return LoaderErasure<M, K, D>::of(loaders);
  };
}

/// Takes the loader of this kind from `source` (the module or a data module), if it has one.
template <class M, StepKind K, class D>
void take_loaders(RunInputs& inputs, D* source) {
  using Loader = typename Members<K>::Loader;
  if constexpr (!Loader::template in<D>) {
  } else if constexpr (!requires {
                         { Loader::call(*source) } -> Loaders;
                       }) {
    Loader::template refuse<D>();
  } else if constexpr (K == StepKind::predict || Members<K>::Step::template in<M>) {
    inputs.loaders[static_cast<std::size_t>(K)] = [source] {
      return LoaderErasure<M, K, D>::of(Loader::call(*source));
    };
  } else {
    inputs.unused_loaders[static_cast<std::size_t>(K)] = true;
  }
}

template <class M, class D>
RunInputs inputs_with(std::shared_ptr<M> module, std::shared_ptr<D> data) {
  auto inputs = inputs_of(std::move(module));
  auto* source = data.get();
  if constexpr (!std::same_as<M, D>) {
    static_assert(std::derived_from<D, DataModule>,
                  "data is given as loaders (muster::DataLoader, or a std::tuple or std::vector of them) or as a class "
                  "derived from muster::DataModule");
    if constexpr (has_transfer_hooks<D>) inputs.transfer_owner = source;
    inputs.data = std::move(data);
  }
  take_loaders<M, StepKind::training>(inputs, source);
  take_loaders<M, StepKind::validation>(inputs, source);
  take_loaders<M, StepKind::test>(inputs, source);
  take_loaders<M, StepKind::predict>(inputs, source);
  return inputs;
}

}  // namespace muster::trainer
