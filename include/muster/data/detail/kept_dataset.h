#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

/// How a DataLoader keeps its dataset, so that no reference dangles. It moves a temporary, copies a named object, and
/// shares the target of a shared_ptr or of a class made by TORCH_MODULE. std::ref() borrows: use it for a dataset that
/// outlives the loader and is too large to copy, or is changed later. (A view, such as std::span, is kept without its
/// elements, which belong to their owner.)
namespace muster::data {

/// The target of ptr(), in classes made by TORCH_MODULE and other holders of a shared_ptr.
template <class H>
using held_t = typename std::remove_cvref_t<decltype(std::declval<const H&>().ptr())>::element_type;
template <class H>
concept dataset_holder = requires(const H& holder) { std::shared_ptr<held_t<H>>(holder.ptr()); };

template <class D>
struct DatasetIn {
  using type = D;
};
template <class H>
  requires dataset_holder<H>
struct DatasetIn<H> : std::type_identity<held_t<H>> {};
template <class D>
struct DatasetIn<std::reference_wrapper<D>> {
  using type = D;
};
template <class D>
struct DatasetIn<const std::reference_wrapper<D>> {
  using type = D;
};
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

}  // namespace muster::data
