#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <c10/core/Device.h>

#include "muster/base/detail/format_text.h"
#include "muster/base/format.h"
#include "muster/runtime/detail/process_control.h"
#include "muster/runtime/detail/state_access.h"

namespace muster {
struct BatchSizeOptions;
class Logger;
}  // namespace muster

namespace muster::runtime {

struct TrialGroup;  // in which find_executable_batch_size() tries one size

/// Selects the rank, or one rank per node, that runs a function.
struct RankSelector {
  enum class Kind { main, local_main, last, rank, local_rank } kind = Kind::main;
  int index = 0;
};

/// The ranks of a job as the runtime knows them, and functions that run on some ranks only or first.
class Processes {
 public:
  /// Starts the other local ranks if no launcher did, and joins the group. The code before this call runs in each of
  /// them. A second call does nothing. Collective.
  void launch();

  int rank() const;
  int local_rank() const;
  int node_rank() const;
  int world_size() const;
  bool is_main() const { return rank() == 0; }
  bool is_local_main() const { return local_rank() == 0; }
  bool is_last() const { return rank() == world_size() - 1; }
  c10::Device device() const;
  /// The group of all ranks.
  const comm::Communicator& group() const;
  void barrier() const;

  /// Returns f as a function for the main rank only: a call elsewhere does nothing. Its result is returned as an
  /// optional. A world of one rank always runs it; the same holds for the functions below.
  template <class F>
  auto on_main_process(F f) const {
    return on_selected({RankSelector::Kind::main}, std::move(f));
  }
  /// As above, for the first rank of each node.
  template <class F>
  auto on_local_main_process(F f) const {
    return on_selected({RankSelector::Kind::local_main}, std::move(f));
  }
  template <class F>
  auto on_last_process(F f) const {
    return on_selected({RankSelector::Kind::last}, std::move(f));
  }
  template <class F>
  auto on_process(int index, F f) const {
    return on_selected({RankSelector::Kind::rank, index}, std::move(f));
  }
  template <class F>
  auto on_local_process(int index, F f) const {
    return on_selected({RankSelector::Kind::local_rank, index}, std::move(f));
  }

  /// Runs `f` on the main rank first, then on the others; if it throws on the main rank, all ranks throw. Collective.
  template <class F>
  auto main_process_first(F&& f) const {
    return first_here(group(), is_main(), std::forward<F>(f));
  }
  /// As above, with the first rank of each node.
  template <class F>
  auto local_main_process_first(F&& f) const {
    return first_here(group(), is_local_main(), std::forward<F>(f));
  }

  /// Prints a line, on the main rank only: print("epoch {}: {:.2f}%", epoch, 100.0 * right / seen).
  template <class... A>
  void print(FormatText<std::type_identity_t<A>...> text, const A&... values) const {
    if (is_main()) print_line(sizeof...(A) == 0 ? std::string(text.text()) : formatted(text.text(), values...));
  }
  /// A stream that prints on the main rank only, line by line, as print() does; elsewhere it prints nothing. A flush
  /// prints the beginning of a line. It lives as long as the runtime.
  std::ostream& out() const;
  /// Returns a logger for the diagnostic log, which writes each line once for all ranks. Requires: the program includes
  /// muster/runtime/extras.h.
  Logger logger(std::string name = "muster") const;

  /// set_trigger() sets this rank's flag. check_trigger() returns whether any rank's flag is set, and if so clears all
  /// of them. The latter is collective.
  void set_trigger();
  bool check_trigger();

  /// From now on SIGTERM and SIGUSR1 do not end the program but are recorded for signal_received(). A second call does
  /// nothing.
  void catch_signals();
  /// Returns the signal that any rank has received, or 0. All ranks get the same answer, so that they save and exit at
  /// the same step. A received signal is not cleared. Collective.
  int signal_received();

  /// Returns every decision taken and its reason, one line each.
  std::string plan() const;

  /// Calls f(batch_size) with smaller and smaller sizes until no rank runs out of memory; all ranks try the same sizes.
  /// Returns the size, or a pair of it and the result of f. Requires: f prepares what it trains itself. Collective.
  /// Throws: UsageError (MU185) if no size fits; any other exception of f. `extra_t<F, Options>` is Options: the call
  /// compiles if the program includes muster/runtime/extras.h (see state_access.h).
  template <class F>
  auto find_executable_batch_size(F&& f, const extra_t<F, BatchSizeOptions>& options = {});

 protected:
  explicit Processes(std::shared_ptr<RuntimeState> state) : state_(std::move(state)) {}

 private:
  static bool is_selected(const RuntimeState& state, const RankSelector& selector);
  static void print_line(const std::string& line);
  TrialGroup trial_group();
  template <class F>
  auto on_selected(const RankSelector& selector, F f) const {
    const auto here = [state = state_, selector] { return is_selected(*state, selector); };
    return OnSomeRanks<std::remove_const_t<decltype(here)>, F>(here, std::move(f));
  }

  std::shared_ptr<RuntimeState> state_;
};

}  // namespace muster::runtime
