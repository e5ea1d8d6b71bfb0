#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "muster/comm/communicator.h"

namespace muster {

/// How find_executable_batch_size() searches for a batch size that fits into memory. The defaults are Accelerate's.
struct BatchSizeOptions {
  /// Returns the next size to try, given the last one; unset: nine tenths of the last size.
  std::function<int64_t(int64_t)> reduce_batch_size = {};
  int64_t starting_batch_size = 128;
};

namespace runtime {

/// Whether the exception reports that memory ran out, on a CPU or an accelerator.
bool is_out_of_memory(const std::exception_ptr& error);
/// Releases cached memory of accelerators.
void empty_device_cache();

/// Agrees on the outcome of a trial of a batch size: whether it fits into the memory of all ranks. `error`: the
/// exception of this rank's trial, if any. Throws: that exception, unless it is an out-of-memory error; UsageError
/// (MU176) if another rank's trial failed for a reason other than memory. Collective.
bool agree_on_trial(const comm::Communicator& group, const std::exception_ptr& error);
/// Throws: UsageError (MU185) if no smaller size is left to try.
int64_t smaller_batch_size(int64_t size, const BatchSizeOptions& options);

/// Opens and closes a group for one trial; abandon() ends waits in it on other ranks.
struct TrialGroup {
  std::function<void()> open, abandon, close;
};

template <class F>
auto find_executable_batch_size(const comm::Communicator& group, const TrialGroup& trial, F&& f,
                                const BatchSizeOptions& options) {
  using R = std::invoke_result_t<F&, int64_t>;
  int64_t size = options.starting_batch_size;
  if (size < 1) size = smaller_batch_size(1, {[](int64_t) { return int64_t{0}; }, 0});
  for (;; size = smaller_batch_size(size, options)) {
    std::exception_ptr error;
    std::conditional_t<std::is_void_v<R>, std::monostate, std::optional<R>> result;
    trial.open();
    try {
      if constexpr (std::is_void_v<R>) f(size);
      else result.emplace(f(size));
    } catch (...) {
      error = std::current_exception();
      trial.abandon();
    }
    trial.close();
    const bool fits = agree_on_trial(group, error);
    error = nullptr;  // the exception may hold the objects that filled the memory
    if (fits) {
      if constexpr (std::is_void_v<R>) return size;
      else return std::make_pair(size, std::move(*result));
    }
    if constexpr (!std::is_void_v<R>) result.reset();
    empty_device_cache();
  }
}

}  // namespace runtime
}  // namespace muster
