#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/data/combined.h"
#include "muster/data/data_loader.h"
#include "muster/data/detail/batch_maker.h"
#include "muster/trainer/batch.h"
#include "muster/trainer/detail/members.h"
#include "muster/trainer/module.h"
#include "muster/tree/detail/visit.h"

namespace muster::trainer {

/// The functions that the loops call for a batch: one table per module, batch type and kind of step.
struct StepTable {
  BatchType type;
  StepOutput (*step)(TrainerModule&, void* batch, BatchPlace);
  EpochFlow (*start)(TrainerModule&, void* batch, BatchPlace) = nullptr;              ///< nullptr: no such hook
  void (*end)(TrainerModule&, const StepOutput&, void* batch, BatchPlace) = nullptr;  ///< nullptr: no such hook
  /// The three transfer hooks of the module or the data module; nullptr: the loader moves its batches ahead of use.
  void (*transfer)(void* owner, void* batch, c10::Device device, int64_t dataloader_idx) = nullptr;
};

/// tree::visit() that also visits the batches of loaders in parallel: pointers to batches, nullptr for a loader that
/// has ended.
template <class T, class F>
void visit_batch(T& batch, F&& f) {
  tree::visit(batch, f);
}
template <class Batch, class F>
void visit_batch(std::vector<Batch*>& batches, F&& f) {
  for (auto* batch : batches)
    if (batch) tree::visit(*batch, f);
}
template <class... Batch, class F>
void visit_batch(std::tuple<Batch*...>& batches, F&& f) {
  std::apply([&](auto*... batch) { ((batch ? tree::visit(*batch, f) : void()), ...); }, batches);
}

[[noreturn]] void refuse_missing_loss();

/// The loss in what a training step returned.
template <class V>
at::Tensor loss_in(const V& value) {
  if constexpr (tree::tensor<V>) return value;
  else if constexpr (tree::optional_like<V>) return value ? loss_in(*value) : at::Tensor();
  else if constexpr (requires {
                       { value.loss } -> std::convertible_to<at::Tensor>;
                     })
    return value.loss;
  else if constexpr (requires {
                       { value.at("loss") } -> std::convertible_to<at::Tensor>;
                     }) {
    if constexpr (requires { value.contains("loss"); })
      if (!value.contains("loss")) refuse_missing_loss();
    return value.at("loss");
  } else
    static_assert(tree::tensor<V>,
                  "training_step returns the loss: a Tensor, a struct or map with a Tensor `loss`, a std::optional of "
                  "one, or nothing");
}

template <class M, class Batch>
decltype(auto) predicted(M& m, Batch& batch, BatchPlace place) {
  if constexpr (member::predict_step::in<M>) return call_with_accepted_arguments<member::predict_step>(m, batch, place);
  else if constexpr (requires { member::forward::call(m, batch); }) return member::forward::call(m, batch);
  else if constexpr (requires { member::forward::call(m, batch.data); }) return member::forward::call(m, batch.data);
  else member::predict_step::template refuse<M, Batch>();
}
template <class M, class Batch>
using predicted_t = std::remove_cvref_t<decltype(predicted(std::declval<M&>(), std::declval<Batch&>(), BatchPlace()))>;

/// The functions in a StepTable. D has the transfer hooks: the data module, or the module itself.
template <class M, class Batch, StepKind K, class D>
struct Steps {
  using Names = Members<K>;
  static Batch& batch_at(void* batch) { return *static_cast<Batch*>(batch); }

  static void visit(void* batch, const std::function<void(at::Tensor&)>& f) { visit_batch(batch_at(batch), f); }

  static decltype(auto) result(TrainerModule& module, void* batch, BatchPlace place) {
    auto& m = static_cast<M&>(module);
    if constexpr (K == StepKind::predict) return predicted(m, batch_at(batch), place);
    else return call_with_accepted_arguments<typename Names::Step>(m, batch_at(batch), place);
  }

  static StepOutput step(TrainerModule& module, void* batch, BatchPlace place) {
    using R = std::remove_cvref_t<decltype(result(module, batch, place))>;
    StepOutput output;
    if constexpr (std::is_void_v<R>) {
      static_assert(K != StepKind::predict, "predict_step returns its prediction");
      result(module, batch, place);
    } else {
      R value = result(module, batch, place);
      if constexpr (K == StepKind::training) output.loss = loss_in(value);
      if constexpr (K != StepKind::training || !tree::tensor<R>) output.value = std::move(value);
    }
    return output;
  }

  static EpochFlow start(TrainerModule& module, void* batch, BatchPlace place) {
    const auto call = [&]() -> decltype(auto) {
      return call_with_accepted_arguments<typename Names::Start>(static_cast<M&>(module), batch_at(batch), place);
    };
    if constexpr (std::is_void_v<decltype(call())>) return call(), EpochFlow::continue_epoch;
    else return call();
  }
  static void end(TrainerModule& module, const StepOutput& output, void* batch, BatchPlace place) {
    call_with_accepted_arguments<typename Names::End>(static_cast<M&>(module), batch_at(batch), place, output);
  }

  static void transfer(void* owner, void* batch, c10::Device device, int64_t dataloader_idx) {
    auto& d = *static_cast<D*>(owner);
    const BatchPlace place{dataloader_idx, 0};  // these hooks take dataloader_idx where steps take batch_idx
    if constexpr (member::on_before_batch_transfer::in<D>)
      call_with_accepted_arguments<member::on_before_batch_transfer>(d, batch_at(batch), place);
    using ToDevice = member::transfer_batch_to_device;
    if constexpr (requires { ToDevice::call(d, batch_at(batch), device, dataloader_idx); })
      ToDevice::call(d, batch_at(batch), device, dataloader_idx);
    else if constexpr (ToDevice::in<D>) ToDevice::template refuse<D, Batch>();
    else visit_batch(batch_at(batch), [&](at::Tensor& tensor) { tensor = tree::moved(tensor, device); });
    if constexpr (member::on_after_batch_transfer::in<D>)
      call_with_accepted_arguments<member::on_after_batch_transfer>(d, batch_at(batch), place);
  }

  static consteval StepTable make() {
    StepTable table{.type = {&typeid(Batch), visit}, .step = step};
    if constexpr (Names::Start::template in<M>) table.start = start;
    if constexpr (Names::End::template in<M>) table.end = end;
    if constexpr (has_transfer_hooks<D>) table.transfer = transfer;
    return table;
  }
  static constexpr StepTable table = make();
};

/// A loader, its batch type erased.
struct ErasedLoader {
  std::shared_ptr<data::LoaderState> loader;  ///< not prepared
  void* (*batch_in)(data::BatchBox& box);     ///< returns the batch in a box of this loader
  const StepTable* steps = nullptr;           ///< nullptr if the loaders' batches form one batch
};

/// How several loaders are combined: in sequence, or in parallel until the shortest or the longest loader ends. The
/// modes of Lightning's CombinedLoader.
enum class LoaderMode : std::uint8_t { sequential, min_size, max_size, max_size_cycle };

/// The loaders of one kind of step, like Lightning's CombinedLoader. For loaders in parallel, `joined` makes one batch
/// of their batches, valid until its next call.
struct CombinedLoader {
  std::vector<ErasedLoader> parts = {};
  LoaderMode mode = LoaderMode::sequential;
  const StepTable* joint_steps = nullptr;
  std::function<void*(const std::vector<void*>& batches)> joined = {};
};

template <class Batch>
void* batch_in(data::BatchBox& box) {
  return &*static_cast<data::BatchBoxOf<Batch>&>(box).batch;
}

/// Erases the batch types of loaders for steps K of module M; D has the transfer hooks.
template <class M, StepKind K, class D>
struct LoaderErasure {
  template <class Batch>
  static ErasedLoader part(const DataLoader<Batch>& loader, const StepTable* steps = &Steps<M, Batch, K, D>::table) {
    return {loader.state(), batch_in<Batch>, steps};
  }
  template <class Batch>
  static CombinedLoader of(const DataLoader<Batch>& loader) {
    return {{part(loader)}};
  }
  template <class Batch>
  static CombinedLoader of(const std::vector<DataLoader<Batch>>& loaders) {
    CombinedLoader combined;
    if constexpr (K != StepKind::training) {
      for (const auto& loader : loaders) combined.parts.push_back(part(loader));
    } else {
      for (const auto& loader : loaders) combined.parts.push_back(part(loader, nullptr));
      join<std::vector<Batch*>>(combined, LoaderMode::max_size_cycle, [](auto& joint, const auto& batches) {
        joint.emplace();
        for (auto* batch : batches) joint->push_back(static_cast<Batch*>(batch));
      });
    }
    return combined;
  }
  template <class... Batch>
  static CombinedLoader of(const std::tuple<DataLoader<Batch>...>& loaders) {
    if constexpr (K == StepKind::training) return side_by_side<Batch&...>(loaders, LoaderMode::max_size_cycle);
    else return one_by_one(loaders);
  }
  template <class... Batch>
  static CombinedLoader of(const SequencedLoaders<Batch...>& loaders) {
    return one_by_one(loaders.loaders());
  }
  template <class... Batch>
  static CombinedLoader of(const CombinedLoaders<Batch...>& loaders) {
    return side_by_side<Batch&...>(
        loaders.loaders(), loaders.mode() == CombineMode::min_size ? LoaderMode::min_size : LoaderMode::max_size_cycle);
  }
  template <class... Batch>
  static CombinedLoader of(const LongestLoaders<Batch...>& loaders) {
    return side_by_side<Batch*...>(loaders.loaders(), LoaderMode::max_size);
  }

 private:
  template <class... Batch>
  static CombinedLoader one_by_one(const std::tuple<DataLoader<Batch>...>& loaders) {
    return std::apply([](const auto&... one) { return CombinedLoader{{part(one)...}}; }, loaders);
  }
  /// Parts of a joint batch are references or, if a loader may have ended, pointers.
  template <class... Part, class... Batch>
  static CombinedLoader side_by_side(const std::tuple<DataLoader<Batch>...>& loaders, LoaderMode mode) {
    static_assert(K == StepKind::training,
                  "muster::combine() and combine_longest() are for training; validation, tests and predictions take "
                  "loaders one after the other: a std::tuple or std::vector of them");
    auto combined = std::apply([](const auto&... one) { return CombinedLoader{{part(one, nullptr)...}}; }, loaders);
    join<std::tuple<Part...>>(combined, mode, [](auto& joint, const auto& batches) {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        joint.emplace(as<Part>(static_cast<Batch*>(batches[I]))...);
      }(std::index_sequence_for<Batch...>());
    });
    return combined;
  }
  template <class Part, class Batch>
  static Part as(Batch* batch) {
    if constexpr (std::is_pointer_v<Part>) return batch;
    else return *batch;
  }
  template <class Joint, class Fill>
  static void join(CombinedLoader& combined, LoaderMode mode, Fill fill) {
    combined.mode = mode;
    combined.joint_steps = &Steps<M, Joint, K, D>::table;
    combined.joined = [fill,
                       storage = std::make_shared<std::optional<Joint>>()](const std::vector<void*>& batches) -> void* {
      fill(*storage, batches);
      return &**storage;
    };
  }
};

template <class T>
inline constexpr bool is_loaders = false;
template <class Batch>
inline constexpr bool is_loaders<DataLoader<Batch>> = true;
template <class Batch>
inline constexpr bool is_loaders<std::vector<DataLoader<Batch>>> = true;
template <class... Batch>
inline constexpr bool is_loaders<std::tuple<DataLoader<Batch>...>> = (sizeof...(Batch) > 0);
template <class... Batch>
inline constexpr bool is_loaders<SequencedLoaders<Batch...>> = true;
template <class... Batch>
inline constexpr bool is_loaders<CombinedLoaders<Batch...>> = true;
template <class... Batch>
inline constexpr bool is_loaders<LongestLoaders<Batch...>> = true;
/// A loader, or several: a std::vector or std::tuple of them, combine(), combine_longest() or in_sequence() of them.
template <class T>
concept Loaders = is_loaders<std::remove_cvref_t<T>>;

/// What predict() collects for these loaders: a list of predictions, or with several loaders one list each.
template <class M, class L>
struct Predictions;
template <class M, class Batch>
struct Predictions<M, DataLoader<Batch>> {
  using One = predicted_t<M, Batch>;
  static_assert(!std::is_void_v<One>, "predict_step(batch, batch_idx) returns its prediction");
  using type = std::vector<std::conditional_t<std::is_void_v<One>, int, One>>;
  static void keep(type& all, StepOutput& output, int64_t) {
    all.push_back(std::any_cast<One>(std::move(output.value)));
  }
  static void complete(type&, std::size_t) {}
};
template <class M, class Batch>
struct Predictions<M, std::vector<DataLoader<Batch>>> {
  using type = std::vector<std::vector<predicted_t<M, Batch>>>;
  static void keep(type& all, StepOutput& output, int64_t dataloader_idx) {
    const auto index = static_cast<std::size_t>(dataloader_idx);
    if (all.size() <= index) all.resize(index + 1);
    Predictions<M, DataLoader<Batch>>::keep(all[index], output, 0);
  }
  /// Adds empty lists for loaders that gave this rank no batch.
  static void complete(type& all, std::size_t loaders) {
    if (all.size() < loaders) all.resize(loaders);
  }
};
template <class M, class... Batch>
struct Predictions<M, std::tuple<DataLoader<Batch>...>> {
  using type = std::tuple<std::vector<predicted_t<M, Batch>>...>;
  static void keep(type& all, StepOutput& output, int64_t dataloader_idx) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((I == static_cast<std::size_t>(dataloader_idx)
            ? Predictions<M, DataLoader<Batch>>::keep(std::get<I>(all), output, 0)
            : void()),
       ...);
    }(std::index_sequence_for<Batch...>());
  }
  static void complete(type&, std::size_t) {}
};
template <class M, class... Batch>
struct Predictions<M, SequencedLoaders<Batch...>> : Predictions<M, std::tuple<DataLoader<Batch>...>> {};

}  // namespace muster::trainer
