#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "muster/tree/detail/visit.h"
#include "muster/tree/stack.h"

namespace torch::data {
template <typename Data, typename Target>
struct Example;
}

namespace muster::tree {

/// The batch type of T. Tensors gain a leading dimension, numbers become a tensor, and strings become a vector of
/// strings. Containers and Examples hold batches of their elements. A user's struct or class keeps its type.
template <class T>
struct Collated {
  using type = T;
};
template <class T>
using collated_t = typename Collated<std::remove_cvref_t<T>>::type;

template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
struct Collated<T> {
  using type = at::Tensor;
};
template <>
struct Collated<std::string> {
  using type = std::vector<std::string>;
};
template <class... T>
struct Collated<std::tuple<T...>> {
  using type = std::tuple<collated_t<T>...>;
};
template <class A, class B>
struct Collated<std::pair<A, B>> {
  using type = std::pair<collated_t<A>, collated_t<B>>;
};
template <class T, std::size_t N>
struct Collated<std::array<T, N>> {
  using type = std::array<collated_t<T>, N>;
};
template <class T, class A>
struct Collated<std::vector<T, A>> {
  using type = std::vector<collated_t<T>>;
};
template <class T>
struct Collated<std::optional<T>> {
  using type = std::optional<collated_t<T>>;
};
template <class K, class V, class C, class A>
struct Collated<std::map<K, V, C, A>> {
  using type = std::map<K, collated_t<V>, C>;
};
template <class K, class V, class H, class E, class A>
struct Collated<std::unordered_map<K, V, H, E, A>> {
  using type = std::unordered_map<K, collated_t<V>, H, E>;
};
template <class D, class T>
struct Collated<torch::data::Example<D, T>> {
  using type = torch::data::Example<collated_t<D>, collated_t<T>>;
};
template <class D>
struct Collated<torch::data::Example<D, void>> {
  using type = torch::data::Example<collated_t<D>, void>;
};

namespace detail {
template <class To, class From>
void collate_parts(To& to, const From& from, const StackPlace& place);
}

/// Copies one sample into its place in the batch. Call it for places 0, 1, ..., place.count - 1 in this order. The
/// first call allocates the batch; it reuses the memory of `batch` if it fits, so nothing else may still use that
/// memory.
/// Throws: UsageError (MU100) if a sample's shape, dtype, keys or length differ from the first one's.
template <class S>
void collate_into(collated_t<S>& batch, const S& sample, const StackPlace& place) {
  using V = std::remove_cvref_t<S>;
  const bool first = place.index == 0;
  if constexpr (tensor<V>) {
    stack_tensor(batch, sample, place);
  } else if constexpr (std::floating_point<V>) {
    stack_real(batch, static_cast<double>(sample), place);
  } else if constexpr (std::same_as<V, bool>) {
    stack_bool(batch, sample, place);
  } else if constexpr (std::is_arithmetic_v<V> || std::is_enum_v<V>) {
    stack_integer(batch, static_cast<int64_t>(sample), place);
  } else if constexpr (std::same_as<V, std::string>) {
    if (first) batch.clear();
    batch.push_back(sample);
  } else if constexpr (listed<V>) {
    if (first) batch = sample;
    auto to = tensors_of(batch);
    auto from = tensors_of(const_cast<V&>(sample));
    if (first) std::apply([](auto&... t) { (tree::visit(t, [](at::Tensor& x) { x.reset(); }), ...); }, to);
    detail::collate_parts(to, from, place);
  } else if constexpr (optional_like<V>) {
    if (first) sample.has_value() ? (void)(batch ? 0 : (batch.emplace(), 0)) : batch.reset();
    if (batch.has_value() != sample.has_value())
      throw_uneven("some samples have an optional value, others have none", place);
    if (batch) collate_into<typename V::value_type>(*batch, *sample, place);
  } else if constexpr (map_like<V>) {
    if (first) std::erase_if(batch, [&](const auto& entry) { return !sample.contains(entry.first); });
    if (!first && batch.size() != sample.size()) throw_uneven("samples have different keys", place);
    for (const auto& [key, value] : sample) {
      if (!first && !batch.contains(key)) throw_uneven("samples have different keys", place);
      collate_into<typename V::mapped_type>(batch[key], value, place);
    }
  } else if constexpr (list_like<V>) {
    if constexpr (requires { batch.resize(sample.size()); })
      if (first) batch.resize(sample.size());
    if (batch.size() != sample.size()) throw_uneven("samples have lists of different lengths", place);
    for (std::size_t i = 0; i < sample.size(); ++i) collate_into<typename V::value_type>(batch[i], sample[i], place);
  } else if constexpr (fixed_parts<V>) {
    auto to = parts_of(batch);
    auto from = parts_of(sample);
    detail::collate_parts(to, from, place);
  } else {
    static_assert(
        fixed_parts<V>,
        "muster cannot batch this type: add to it `friend auto tensors_of(T& t) { return std::tie(t.x, t.y); }`");
  }
}

namespace detail {
template <class To, class From>
void collate_parts(To& to, const From& from, const StackPlace& place) {
  const auto collate_one = [&]<class T, class F>(T& batch, const F& sample) {
    static_assert(std::same_as<collated_t<F>, T>,
                  "a struct's numbers and texts have no place in a batch of the same struct: make the field a tensor, "
                  "use a tuple, or give the dataset get_batch(indices, batch)");
    collate_into<F>(batch, sample, place);
  };
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (collate_one(std::get<I>(to), std::get<I>(from)), ...);
  }(std::make_index_sequence<std::tuple_size_v<From>>());
}
}  // namespace detail

/// Collates the samples into one batch.
/// Throws: UsageError (MU100), as collate_into() does, or if `samples` is empty.
template <class S>
collated_t<S> collate(const std::vector<S>& samples) {
  if (samples.empty()) throw_uneven("there are no samples", {});
  auto batch = [&] {
    if constexpr (std::is_default_constructible_v<collated_t<S>>) return collated_t<S>();
    else return samples.front();
  }();
  StackPlace place{.count = static_cast<int64_t>(samples.size())};
  for (; place.index < place.count; ++place.index) collate_into<S>(batch, samples[place.index], place);
  return batch;
}

}  // namespace muster::tree
