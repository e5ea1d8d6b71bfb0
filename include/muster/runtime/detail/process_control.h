#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace muster::comm {
class Communicator;
}

namespace muster::runtime {

class RuntimeState;

/// Selects the rank, or one rank per node, that runs a function.
struct RankSelector {
  enum class Kind { main, local_main, last, rank, local_rank } kind = Kind::main;
  int index = 0;  ///< the rank, for Kind::rank and Kind::local_rank
};

/// Whether this rank is selected; always true in a world of one.
bool is_selected(const RuntimeState& state, const RankSelector& selector);

/// A function that runs on some ranks only; on the others a call does nothing. Its result is returned as an optional.
template <class Here, class F>
class OnSomeRanks {
 public:
  OnSomeRanks(Here here, F f) : here_(std::move(here)), f_(std::move(f)) {}
  template <class... A>
  auto operator()(A&&... arguments) {
    using R = std::invoke_result_t<F&, A...>;
    if constexpr (std::is_void_v<R>) {
      if (here_()) f_(std::forward<A>(arguments)...);
    } else {
      return here_() ? std::optional<R>(f_(std::forward<A>(arguments)...)) : std::nullopt;
    }
  }

 private:
  Here here_;
  F f_;
};

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
