#pragma once

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
  iterator(iterator&&) noexcept = default;
  iterator& operator=(iterator&&) noexcept = default;

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

}  // namespace muster
