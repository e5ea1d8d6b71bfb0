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

#include "muster/data/detail/batch_box.h"
#include "muster/data/detail/data_loader.h"
#include "muster/trainer/detail/steps.h"

namespace muster::trainer {

/// One loader of a feed, its batch type erased.
struct FeedPart {
  std::shared_ptr<data::LoaderState> loader;  ///< not prepared
  void* (*batch_in)(data::BatchBox& box);     ///< the batch in a box of this loader
  const StepTable* steps = nullptr;           ///< nullptr where the parts' batches make one batch
};

/// The loaders of one kind of step: one after the other, or side by side. Then `joined` makes one batch of theirs,
/// which is valid until its next call.
struct Feed {
  std::vector<FeedPart> parts = {};
  const StepTable* joint_steps = nullptr;
  std::function<void*(const std::vector<void*>& batches)> joined = {};
};

template <class Batch>
void* batch_in(data::BatchBox& box) {
  return &*static_cast<data::BatchBoxOf<Batch>&>(box).batch;
}

/// Makes feeds for module M; D has the transfer hooks.
template <class M, StepKind K, class D>
struct Feeder {
  template <class Batch>
  static FeedPart part(const DataLoader<Batch>& loader, const StepTable* steps = &Steps<M, Batch, K, D>::table) {
    return {loader.state(), batch_in<Batch>, steps};
  }
  template <class Batch>
  static Feed of(const DataLoader<Batch>& loader) {
    return {{part(loader)}};
  }
  template <class Batch>
  static Feed of(const std::vector<DataLoader<Batch>>& loaders) {
    Feed feed;
    for (const auto& loader : loaders) feed.parts.push_back(part(loader));
    return feed;
  }
  /// In training side by side, as a tuple of references; otherwise one after the other.
  template <class... Batch>
  static Feed of(const std::tuple<DataLoader<Batch>...>& loaders) {
    if constexpr (K != StepKind::training) {
      return std::apply([](const auto&... one) { return Feed{{part(one)...}}; }, loaders);
    } else {
      using Joint = std::tuple<Batch&...>;
      auto feed = std::apply([](const auto&... one) { return Feed{{part(one, nullptr)...}}; }, loaders);
      feed.joint_steps = &Steps<M, Joint, K, D>::table;
      feed.joined = [room = std::make_shared<std::optional<Joint>>()](const std::vector<void*>& batches) -> void* {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
          room->emplace(*static_cast<Batch*>(batches[I])...);
        }(std::index_sequence_for<Batch...>());
        return &**room;
      };
      return feed;
    }
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
/// A loader, or a std::vector or std::tuple of loaders.
template <class T>
concept Loaders = is_loaders<std::remove_cvref_t<T>>;

/// What predict() collects of these loaders: a list of predictions; of several loaders one list each.
template <class M, class L>
struct Predictions;
template <class M, class Batch>
struct Predictions<M, DataLoader<Batch>> {
  using One = predicted_t<M, Batch>;
  using type = std::vector<One>;
  static void keep(type& all, StepOutput& output, int64_t) {
    all.push_back(std::any_cast<One>(std::move(output.value)));
  }
};
template <class M, class Batch>
struct Predictions<M, std::vector<DataLoader<Batch>>> {
  using type = std::vector<std::vector<predicted_t<M, Batch>>>;
  static void keep(type& all, StepOutput& output, int64_t dataloader_idx) {
    const auto index = static_cast<std::size_t>(dataloader_idx);
    if (all.size() <= index) all.resize(index + 1);
    Predictions<M, DataLoader<Batch>>::keep(all[index], output, 0);
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
};

}  // namespace muster::trainer
