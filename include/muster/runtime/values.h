#pragma once

#include "muster/dist/communicator.h"
#include "muster/parallel/managed_model.h"
#include "muster/tree/visit.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::runtime {

/// While it lives, gradients of some models stay local. Restores what was before it.
class [[nodiscard("name the scope: auto quiet = ...")]] NoSyncScope {
 public:
  NoSyncScope(std::vector<std::shared_ptr<parallel::ManagedModel>> models, bool enabled);
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;
  ~NoSyncScope();

 private:
  std::vector<std::pair<std::shared_ptr<parallel::ManagedModel>, bool>> before_;
};

/// How tensors are padded across ranks.
struct PadOptions {
  int64_t dim = 0;
  /// Padding goes in front instead of behind.
  bool pad_first = false;
  double value = 0;
};

// One tensor at a time. Collective: all of them.
at::Tensor gather_tensor(const dist::Communicator& group, const at::Tensor& tensor);
at::Tensor stack_tensor(const dist::Communicator& group, const at::Tensor& tensor);
at::Tensor reduce_tensor(const dist::Communicator& group, const at::Tensor& tensor, std::string_view op);
at::Tensor broadcast_tensor(const dist::Communicator& group, const at::Tensor& tensor, int source);
at::Tensor pad_tensor(const dist::Communicator& group, const at::Tensor& tensor, const PadOptions& options);
/// Tells the other ranks how the main rank's turn went: the message of an exception, or nothing.
void tell_outcome(const dist::Communicator& group, const std::string& failure);
/// Throws: UsageError (MU176) with the main rank's message if its turn failed.
void hear_outcome(const dist::Communicator& group);

template <class... T>
auto gather(const dist::Communicator& group, const T&... values) {
  static_assert(sizeof...(T) > 0, "gather takes at least one value");
  auto one = [&](const auto& value) { return tree::transform(value, [&](const at::Tensor& t) { return gather_tensor(group, t); }); };
  if constexpr (sizeof...(T) == 1) return one(values...);
  else return std::tuple<T...>{one(values)...};
}

template <class T>
T all_gather(const dist::Communicator& group, const T& value) {
  return tree::transform(value, [&](const at::Tensor& t) { return stack_tensor(group, t); });
}

template <class T>
T reduce(const dist::Communicator& group, const T& value, std::string_view op) {
  return tree::transform(value, [&](const at::Tensor& t) { return reduce_tensor(group, t, op); });
}

template <class T>
T broadcast(const dist::Communicator& group, const T& value, int source) {
  if constexpr (std::is_same_v<T, std::string>) {
    return group.broadcast_bytes(value, source);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    const auto bytes = group.broadcast_bytes(std::string(reinterpret_cast<const char*>(&value), sizeof value), source);
    T received;
    bytes.copy(reinterpret_cast<char*>(&received), sizeof received);
    return received;
  } else {
    return tree::transform(value, [&](const at::Tensor& t) { return broadcast_tensor(group, t, source); });
  }
}

template <class T>
T pad_across_processes(const dist::Communicator& group, const T& value, const PadOptions& options) {
  return tree::transform(value, [&](const at::Tensor& t) { return pad_tensor(group, t, options); });
}

/// The failure of a call, as text; empty if it returned. The exception goes on in `failed`.
template <class F>
std::string outcome_of(F&& f, std::exception_ptr& failed) {
  try {
    f();
    return {};
  } catch (const std::exception& error) {
    failed = std::current_exception();
    return error.what();
  } catch (...) {
    failed = std::current_exception();
    return "an exception that is no std::exception";
  }
}

/// Runs f where `first` holds, then on the other ranks. Collective.
template <class F>
auto first_here(const dist::Communicator& group, bool first, F&& f) {
  using R = std::invoke_result_t<F&>;
  if (!first) {
    hear_outcome(group);
    return f();
  }
  std::exception_ptr failed;
  if constexpr (std::is_void_v<R>) {
    tell_outcome(group, outcome_of(f, failed));
    if (failed) std::rethrow_exception(failed);
  } else {
    std::optional<R> result;
    tell_outcome(group, outcome_of([&] { result.emplace(f()); }, failed));
    if (failed) std::rethrow_exception(failed);
    return R(std::move(*result));
  }
}

}  // namespace muster::runtime
