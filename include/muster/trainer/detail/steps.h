#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/trainer/batch.h"
#include "muster/trainer/detail/members.h"
#include "muster/trainer/module.h"
#include "muster/tree/detail/move.h"
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

}  // namespace muster::trainer
