#pragma once

#include <cstdint>
#include <type_traits>

#include "muster/data/dataset.h"
#include "muster/data/detail/any_sampler.h"
#include "muster/data/options.h"

namespace muster {

template <class Batch>
class DataLoader;

template <class T>
inline constexpr bool is_data_loader = false;
template <class Batch>
inline constexpr bool is_data_loader<DataLoader<Batch>> = true;

namespace data {
/// Takes the place of the batch type if the argument is not a dataset.
template <class D>
struct NoDataset {};
template <class D>
concept no_dataset = !requires { typename batch_of_t<D>; };
template <class T>
inline constexpr bool is_no_dataset = false;
template <class D>
inline constexpr bool is_no_dataset<NoDataset<D>> = true;
}  // namespace data

/// Gives a one-line compile error for an argument that is not a dataset.
template <class D>
class DataLoader<data::NoDataset<D>> {
  static_assert(!data::is_no_dataset<data::NoDataset<D>>,
                "muster::DataLoader takes a dataset, which this is not: a class with size() and get(index) or "
                "get_batch(indices), a range with operator[], "
                "a torch::data dataset, a function with the number of its samples, or a stream with next() "
                "and #include <muster/data/stream.h>; see muster/data/dataset.h and muster/data/stream.h");

 public:
  /// Does not compile.
  template <class A>
  explicit DataLoader(A&&, DataLoaderOptions = {}) {}
  /// Does not compile.
  template <class A>
  DataLoader(A&&, const data::AnySampler&, DataLoaderOptions = {}) {}
  /// Does not compile.
  template <class A>
  DataLoader(A&&, int64_t, DataLoaderOptions = {}) {}
};

template <class D>
  requires data::no_dataset<D> && (!is_data_loader<std::remove_cvref_t<D>>)
DataLoader(D&&, DataLoaderOptions = {}) -> DataLoader<data::NoDataset<std::remove_cvref_t<D>>>;
template <class D>
  requires data::no_dataset<D>
DataLoader(D&&, data::AnySampler, DataLoaderOptions = {}) -> DataLoader<data::NoDataset<std::remove_cvref_t<D>>>;
template <class F>
  requires data::no_dataset<F> && (!data::dataset_function<F>)
DataLoader(F, int64_t, DataLoaderOptions = {}) -> DataLoader<data::NoDataset<F>>;

}  // namespace muster
