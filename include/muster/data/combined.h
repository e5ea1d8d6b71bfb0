#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <utility>
#include <variant>

#include "muster/data/loader.h"

namespace muster {

/// One batch of loaders that run one after the other.
template <class... Batch>
struct SequencedBatch {
  std::variant<Batch*...> batch;
  int64_t batch_index = 0;
  std::size_t loader_index = 0;

  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit([&](auto* b) -> decltype(auto) { return f(*b); }, batch);
  }
};

/// Several loaders one after the other, as a range of SequencedBatch.
/// Thread safety: one thread at a time; one pass at a time.
template <class... Batch>
class SequencedLoaders {
 public:
  class iterator;
  explicit SequencedLoaders(DataLoader<Batch>... loaders) : loaders_(std::move(loaders)...) {}

  iterator begin() const { return iterator(loaders_); }
  std::default_sentinel_t end() const noexcept { return {}; }
  /// Batches of all loaders in a pass.
  /// Throws: UsageError (MU113) with a stream of unknown length.
  int64_t size() const {
    return std::apply([](const auto&... l) { return (l.size() + ...); }, loaders_);
  }
  const std::tuple<DataLoader<Batch>...>& loaders() const noexcept { return loaders_; }

 private:
  std::tuple<DataLoader<Batch>...> loaders_;
};

template <class... Batch>
class SequencedLoaders<Batch...>::iterator {
 public:
  using value_type = SequencedBatch<Batch...>;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  explicit iterator(std::tuple<DataLoader<Batch>...> loaders) : loaders_(std::move(loaders)) { open<0>(); }

  value_type operator*() const { return now_; }
  iterator& operator++() {
    advance<0>();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const iterator& it, std::default_sentinel_t) {
    return it.now_.loader_index == sizeof...(Batch);
  }

 private:
  template <std::size_t I>
  void open() {
    now_.loader_index = I;
    now_.batch_index = 0;
    if constexpr (I < sizeof...(Batch)) {
      std::get<I>(at_) = std::get<I>(loaders_).begin();
      look<I>();
    }
  }
  template <std::size_t I>
  void look() {
    auto& at = std::get<I>(at_);
    if (at == std::default_sentinel) return at = {}, open<I + 1>();
    now_.batch.template emplace<I>(&*at);
  }
  template <std::size_t I>
  void advance() {
    if constexpr (I < sizeof...(Batch)) {
      if (now_.loader_index != I) return advance<I + 1>();
      ++now_.batch_index;
      ++std::get<I>(at_);
      look<I>();
    }
  }

  std::tuple<typename DataLoader<Batch>::iterator...> at_;
  std::tuple<DataLoader<Batch>...> loaders_;
  value_type now_;
};

template <class... Batch>
SequencedLoaders<Batch...> in_sequence(DataLoader<Batch>... loaders) {
  return SequencedLoaders<Batch...>(std::move(loaders)...);
}

// combine() and combine_longest() iterate loaders in parallel; in_sequence(), which this header includes, iterates
// them one after the other.

/// When a pass over several loaders in parallel ends.
enum class CombineMode {
  min_size,        ///< it ends with the shortest loader
  max_size_cycle,  ///< it ends with the longest loader; the others restart in their next epoch
};

/// Several loaders in parallel, as a range of tuples of references to their batches:
/// `for (auto [a, b] : combine(mode, x, y))`. It holds handles, so positions, epochs and the sample counts of the
/// current batch are read from the loaders. A complete pass advances the epoch of every loader.
/// Thread safety: one thread at a time; one pass at a time.
template <class... Batch>
class CombinedLoaders {
 public:
  class iterator;
  CombinedLoaders(CombineMode mode, DataLoader<Batch>... loaders) : loaders_(std::move(loaders)...), mode_(mode) {}

  iterator begin() const { return iterator(loaders_, mode_); }
  std::default_sentinel_t end() const noexcept { return {}; }
  /// Steps of a complete pass. Throws: UsageError (MU113) with a stream of unknown length.
  int64_t size() const {
    const auto sizes = std::apply([](const auto&... l) { return std::array{l.size()...}; }, loaders_);
    const auto [least, most] = std::ranges::minmax(sizes);
    return mode_ == CombineMode::min_size || least == 0 ? least : most;
  }
  const std::tuple<DataLoader<Batch>...>& loaders() const noexcept { return loaders_; }
  CombineMode mode() const noexcept { return mode_; }

 private:
  std::tuple<DataLoader<Batch>...> loaders_;
  CombineMode mode_;
};

template <class... Batch>
class CombinedLoaders<Batch...>::iterator {
 public:
  using value_type = std::tuple<Batch&...>;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  iterator(std::tuple<DataLoader<Batch>...> loaders, CombineMode mode) : loaders_(std::move(loaders)), mode_(mode) {
    each([&](auto i) { start<i>(); });
    // A loader without batches cannot be cycled.
    if (some_ended()) finish();
  }

  value_type operator*() const {
    return std::apply([](auto&... at) { return value_type(*at...); }, at_);
  }
  iterator& operator++() {
    each([&](auto i) { ++std::get<i>(at_); });
    each([&](auto i) { was_through_[i] = was_through_[i] || ended<i>(); });
    const bool all = std::ranges::all_of(was_through_, [](bool through) { return through; });
    if (mode_ == CombineMode::min_size ? some_ended() : all) return finish(), *this;
    each([&](auto i) {
      if (ended<i>()) start<i>();
    });
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const iterator& it, std::default_sentinel_t) { return it.done_; }

 private:
  template <class F>
  void each(F&& f) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (f(std::integral_constant<std::size_t, I>()), ...);
    }(std::index_sequence_for<Batch...>());
  }
  template <std::size_t I>
  void start() {
    epochs_[I] = std::get<I>(loaders_).epoch();
    std::get<I>(at_) = std::get<I>(loaders_).begin();
  }
  template <std::size_t I>
  bool ended() const {
    return std::get<I>(at_) == std::default_sentinel;
  }
  bool some_ended() {
    bool some = false;
    each([&](auto i) { some = some || ended<i>(); });
    return some;
  }
  /// Ends the pass of each loader and advances its epoch, even if the pass stopped early because another loader ended.
  void finish() {
    done_ = true;
    each([&](auto i) {
      std::get<i>(at_) = {};
      auto& loader = std::get<i>(loaders_);
      if (loader.epoch() == epochs_[i]) loader.set_epoch(epochs_[i] + 1);
    });
  }

  std::tuple<typename DataLoader<Batch>::iterator...> at_;
  bool done_ = false;
  std::array<int64_t, sizeof...(Batch)> epochs_{};
  std::tuple<DataLoader<Batch>...> loaders_;
  CombineMode mode_;
  std::array<bool, sizeof...(Batch)> was_through_{};
};

/// Several loaders in parallel until the longest ends, as a range of tuples of pointers to their batches. A loader that
/// has ended gives nullptr (CombineMode::max_size_cycle restarts it instead). Lightning's mode "max_size".
/// `for (auto [a, b] : combine_longest(x, y))`. It holds handles, as CombinedLoaders does.
/// Thread safety: one thread at a time; one pass at a time.
template <class... Batch>
class LongestLoaders {
 public:
  class iterator;
  explicit LongestLoaders(DataLoader<Batch>... loaders) : loaders_(std::move(loaders)...) {}

  iterator begin() const { return iterator(loaders_); }
  std::default_sentinel_t end() const noexcept { return {}; }
  /// Steps of a complete pass. Throws: UsageError (MU113) with a stream of unknown length.
  int64_t size() const {
    return std::apply([](const auto&... l) { return std::max({l.size()...}); }, loaders_);
  }
  const std::tuple<DataLoader<Batch>...>& loaders() const noexcept { return loaders_; }

 private:
  std::tuple<DataLoader<Batch>...> loaders_;
};

template <class... Batch>
class LongestLoaders<Batch...>::iterator {
 public:
  using value_type = std::tuple<Batch*...>;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  explicit iterator(const std::tuple<DataLoader<Batch>...>& loaders)
      : at_(std::apply([](const auto&... l) { return decltype(at_)(l.begin()...); }, loaders)) {}

  value_type operator*() const {
    return std::apply([](const auto&... at) { return value_type(at == std::default_sentinel ? nullptr : &*at...); },
                      at_);
  }
  iterator& operator++() {
    std::apply([](auto&... at) { (next(at), ...); }, at_);
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const iterator& it, std::default_sentinel_t) {
    return std::apply([](const auto&... at) { return ((at == std::default_sentinel) && ...); }, it.at_);
  }

 private:
  template <class At>
  static void next(At& at) {
    if (at != std::default_sentinel && ++at == std::default_sentinel) at = {};  // ends the threads of the loader
  }

  std::tuple<typename DataLoader<Batch>::iterator...> at_;
};

template <class... Batch>
LongestLoaders<Batch...> combine_longest(DataLoader<Batch>... loaders) {
  return LongestLoaders<Batch...>(std::move(loaders)...);
}

template <class... Batch>
CombinedLoaders<Batch...> combine(CombineMode mode, DataLoader<Batch>... loaders) {
  return {mode, std::move(loaders)...};
}

}  // namespace muster
