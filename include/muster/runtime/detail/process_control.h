#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace muster {
struct ClusterEnvironment;
namespace comm {
class Communicator;
}
}  // namespace muster

namespace muster::runtime {

class RuntimeState;

const ClusterEnvironment& cluster_of(const RuntimeState& state);

/// Runs `turn`, which is empty on some ranks. Throws: what `turn` throws; UsageError (MU176), on the other ranks, with
/// the message of the first rank that failed. Collective.
void run_turn(const comm::Communicator& group, const std::function<void()>& turn);

/// Runs f on the ranks where `first` is true, then on the others; if it throws on the former, all ranks throw.
/// Collective.
template <class F>
auto first_here(const comm::Communicator& group, bool first, F&& f) {
  using R = std::invoke_result_t<F&>;
  if (!first) {
    run_turn(group, {});
    return f();
  }
  if constexpr (std::is_void_v<R>) {
    run_turn(group, std::ref(f));
  } else {
    std::optional<R> result;
    run_turn(group, [&] { result.emplace(f()); });
    return R(std::move(*result));
  }
}

}  // namespace muster::runtime
