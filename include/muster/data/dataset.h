#pragma once

#include <algorithm>  // std::ranges::random_access_range
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "muster/base/error.h"
#include "muster/data/random.h"
#include "muster/tree/detail/collate.h"

namespace muster {

/// How a DataLoader keeps its dataset, so that no reference dangles. It moves a temporary, copies a named object, and
/// shares the target of a shared_ptr or of a class made by TORCH_MODULE. std::ref() borrows: use it for a dataset that
/// outlives the loader and is too large to copy, or is changed later. (A view, such as std::span, is kept without its
/// elements, which belong to their owner.)
namespace data {

/// The target of ptr(), in classes made by TORCH_MODULE and other holders of a shared_ptr.
template <class H>
using held_t = typename std::remove_cvref_t<decltype(std::declval<const H&>().ptr())>::element_type;
template <class H>
concept dataset_holder = requires(const H& holder) { std::shared_ptr<held_t<H>>(holder.ptr()); };

template <class D>
struct DatasetIn : std::type_identity<D> {};
template <dataset_holder H>
struct DatasetIn<H> : std::type_identity<held_t<H>> {};
template <class D>
struct DatasetIn<std::shared_ptr<D>> : std::type_identity<D> {};
template <class D>
struct DatasetIn<const std::shared_ptr<D>> : std::type_identity<D> {};
template <class D>
struct DatasetIn<std::reference_wrapper<D>> : std::type_identity<D> {};
template <class D>
struct DatasetIn<const std::reference_wrapper<D>> : std::type_identity<D> {};
/// The dataset type of a DataLoader's argument.
template <class D>
using dataset_in_t = typename DatasetIn<std::remove_reference_t<D>>::type;

/// Throws: ConfigError (MU128) for a null pointer.
void require_dataset(const void* dataset);
/// Throws: ConfigError (MU128) if `whole` is false: the reference is to a base class, so a copy would be sliced.
void require_whole(bool whole);

template <class D>
std::shared_ptr<dataset_in_t<D>> keep_dataset(D&& dataset) {
  using Kept = dataset_in_t<D>;
  if constexpr (dataset_holder<std::remove_reference_t<D>>) {
    return dataset.ptr();
  } else if constexpr (std::same_as<std::shared_ptr<Kept>, std::remove_cvref_t<D>>) {
    return std::forward<D>(dataset);
  } else if constexpr (!std::same_as<Kept, std::remove_reference_t<D>>) {
    return std::shared_ptr<Kept>(std::shared_ptr<void>(), std::addressof(dataset.get()));
  } else if constexpr (std::is_lvalue_reference_v<D>) {
    static_assert(std::copy_constructible<std::remove_const_t<Kept>>,
                  "muster::DataLoader keeps its dataset, and this one cannot be copied: std::move() it in, give a "
                  "std::shared_ptr, or "
                  "std::ref(dataset) if it outlives the loader");
    if constexpr (std::is_polymorphic_v<Kept>) require_whole(typeid(dataset) == typeid(Kept));
    if constexpr (std::copy_constructible<std::remove_const_t<Kept>>) return std::make_shared<Kept>(dataset);
  } else {
    return std::make_shared<Kept>(std::forward<D>(dataset));
  }
}

}  // namespace data

/// Thrown when a dataset throws (MU102). The message contains the text of the cause; the cause itself is nested
/// (std::rethrow_if_nested).
class DatasetError : public Error {
 public:
  DatasetError(int64_t index, const std::string& message) : Error("MU102", message), index_(index) {}
  /// The index of the sample that failed; that of the batch's first sample if the dataset makes whole batches.
  int64_t index() const noexcept { return index_; }

 private:
  int64_t index_;
};

/// The interfaces of a map-style dataset, in the order in which they are tried:
///   void get_batch(std::span<const int64_t> indices, Batch& out [, const EpochRandom&])   writes the batch in place
///   Batch get_batch(indices)                                    returns it; indices: span<int64_t> or ArrayRef<size_t>
///   Sample get(index [, SampleRandom&])                         one sample, collated by tree::collate
///   std::vector<Sample> get_batch(indices)                      samples, collated
///   operator[](index) of a random-access range                  one sample, collated
/// together with size(). A torch::data dataset, mapped or not, is one of these.
namespace data {

using Indices = std::span<const int64_t>;

namespace detail {
template <class F>
struct OutArgument {};
template <class C, class R, class I, class B, class... X>
struct OutArgument<R (C::*)(I, B&, X...)> : std::type_identity<B> {};
template <class C, class R, class I, class B, class... X>
struct OutArgument<R (C::*)(I, B&, X...) const> : std::type_identity<B> {};
template <class T>
inline constexpr bool is_vector = false;
template <class T, class A>
inline constexpr bool is_vector<std::vector<T, A>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class D>
concept batches_by_span = requires(D& d, Indices i) { d.get_batch(i); };
template <class D>
concept batches_by_array = !batches_by_span<D> && requires(D& d, c10::ArrayRef<size_t> i) { d.get_batch(i); };

template <class D>
auto call_get_batch(D& d, Indices indices) {
  if constexpr (batches_by_span<D>) {
    return d.get_batch(indices);
  } else {
    static_assert(sizeof(size_t) == sizeof(int64_t));
    return d.get_batch(c10::ArrayRef<size_t>(reinterpret_cast<const size_t*>(indices.data()), indices.size()));
  }
}
}  // namespace detail

template <class D>
concept sized_dataset = requires(D& d) { d.size(); };

template <class D>
concept in_place_dataset = sized_dataset<D> && requires {
  typename detail::OutArgument<decltype(&D::get_batch)>::type;
} && !std::is_const_v<typename detail::OutArgument<decltype(&D::get_batch)>::type>;

template <class D>
concept batch_dataset =
    !in_place_dataset<D> && sized_dataset<D> && (detail::batches_by_span<D> || detail::batches_by_array<D>);

template <class D>
concept random_sample_dataset = sized_dataset<D> && requires(D& d, SampleRandom& r) { d.get(size_t{}, r); };

template <class D>
concept sample_dataset = random_sample_dataset<D> || (sized_dataset<D> && requires(D& d) { d.get(size_t{}); });

template <class D>
concept list_dataset = std::ranges::random_access_range<D> && sized_dataset<D> && requires(D& d) { d[size_t{}]; };

template <class D>
concept map_dataset = in_place_dataset<D> || batch_dataset<D> || sample_dataset<D> || list_dataset<D>;

/// One sample of a dataset that returns single samples.
template <class D>
  requires(sample_dataset<D> || list_dataset<D>)
decltype(auto) sample_of(D& dataset, int64_t index, const EpochRandom& random) {
  if constexpr (random_sample_dataset<D>) {
    auto own = random.at(index);
    return dataset.get(static_cast<size_t>(index), own);
  } else if constexpr (sample_dataset<D>) {
    return dataset.get(static_cast<size_t>(index));
  } else {
    return dataset[static_cast<size_t>(index)];
  }
}

/// How a dataset of type D returns its data (fetch_kind()), and the type of its batches (BatchOf).
enum class FetchKind { in_place, batch, sample, sample_list };

template <class D>
consteval FetchKind fetch_kind() {
  if constexpr (in_place_dataset<D>) {
    return FetchKind::in_place;
  } else if constexpr (batch_dataset<D>) {
    using Made = decltype(detail::call_get_batch(std::declval<D&>(), Indices()));
    static_assert(!detail::is_optional<Made>,
                  "muster::DataLoader takes streams of samples: this one gives whole batches and has no indices");
    if constexpr (!detail::is_vector<Made>) return FetchKind::batch;
    else if constexpr (sample_dataset<D>) return FetchKind::sample;
    else return FetchKind::sample_list;
  } else {
    return FetchKind::sample;
  }
}

template <class D>
struct BatchOf;
template <in_place_dataset D>
struct BatchOf<D> : detail::OutArgument<decltype(&D::get_batch)> {};
template <class D>
  requires(!in_place_dataset<D> && map_dataset<D>)
struct BatchOf<D> {
  static auto find() {
    if constexpr (fetch_kind<D>() == FetchKind::batch)
      return std::type_identity<decltype(detail::call_get_batch(std::declval<D&>(), Indices()))>();
    else if constexpr (fetch_kind<D>() == FetchKind::sample_list)
      return std::type_identity<
          tree::collated_t<typename decltype(detail::call_get_batch(std::declval<D&>(), Indices()))::value_type>>();
    else
      return std::type_identity<
          tree::collated_t<decltype(sample_of(std::declval<D&>(), 0, std::declval<const EpochRandom&>()))>>();
  }
  using type = typename decltype(find())::type;
};

/// A dataset made of a function and a size. The function maps an index [and SampleRandom&] to a sample, or indices to a
/// batch.
template <class F>
struct Function {
  F call;
  int64_t count = 0;

  int64_t size() const { return count; }
  auto get(int64_t i) const
    requires std::invocable<const F&, int64_t>
  {
    return call(i);
  }
  auto get(int64_t i)
    requires(!std::invocable<const F&, int64_t> && std::invocable<F&, int64_t>)
  {
    return call(i);
  }
  auto get(int64_t i, SampleRandom& r) const
    requires std::invocable<const F&, int64_t, SampleRandom&>
  {
    return call(i, r);
  }
  auto get_batch(Indices i) const
    requires(!std::invocable<const F&, int64_t> && std::invocable<const F&, Indices>)
  {
    return call(i);
  }
};
// Clang deduces the arguments of an aggregate from version 17 on.
template <class F>
Function(F, int64_t) -> Function<F>;

template <class F>
concept dataset_function =
    !dataset_holder<F> && !sized_dataset<F> &&
    (std::invocable<F&, int64_t> || std::invocable<F&, int64_t, SampleRandom&> || std::invocable<F&, Indices>);

}  // namespace data

/// The batch type of a DataLoader over a dataset of type D.
template <class D>
using batch_of_t = typename data::BatchOf<data::dataset_in_t<D>>::type;

}  // namespace muster
