#pragma once

#include "muster/base/format.h"
#include "muster/base/format_text.h"
#include "muster/dist/communicator.h"
#include "muster/runtime/logger.h"
#include "muster/runtime/process_control.h"

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace muster::runtime {

class Parts;

/// Which rank runs a function that only one of them is to run.
struct Turn {
  enum class Kind { main, local_main, last, rank, local_rank } kind = Kind::main;
  int index = 0;
};

/// What a runtime knows of the ranks, and how it lets them take turns.
class Processes {
 public:
  /// Brings up the other local ranks where nobody did (what stands before it runs in each of them) and joins the group.
  /// A second call does nothing. Collective.
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
  const dist::Communicator& group() const;
  void barrier() const;

  /// The function for the main rank only: a call elsewhere does nothing. What it returns comes back as an optional.
  /// A program that runs alone always runs it; so with the others.
  template <class F>
  auto on_main_process(F f) const { return turn({Turn::Kind::main}, std::move(f)); }
  /// For the first rank of each node.
  template <class F>
  auto on_local_main_process(F f) const { return turn({Turn::Kind::local_main}, std::move(f)); }
  template <class F>
  auto on_last_process(F f) const { return turn({Turn::Kind::last}, std::move(f)); }
  template <class F>
  auto on_process(int index, F f) const { return turn({Turn::Kind::rank, index}, std::move(f)); }
  template <class F>
  auto on_local_process(int index, F f) const { return turn({Turn::Kind::local_rank, index}, std::move(f)); }

  /// Runs `f` on the main rank first, then on the others; an exception on the main rank reaches all. Collective.
  template <class F>
  auto main_process_first(F&& f) const { return first_here(group(), is_main(), std::forward<F>(f)); }
  /// As above, with the first rank of each node.
  template <class F>
  auto local_main_process_first(F&& f) const { return first_here(group(), is_local_main(), std::forward<F>(f)); }

  /// A line on the main rank only: print("epoch {}: {:.2f}%", epoch, 100.0 * right / seen).
  template <class... A>
  void print(FormatText<std::type_identity_t<A>...> text, const A&... values) const {
    if (is_main()) print_line(sizeof...(A) == 0 ? std::string(text.text()) : formatted(text.text(), values...));
  }
  /// Lines for the diagnostic log, once for all ranks.
  Logger logger(std::string name = "muster") const { return Logger(std::move(name), group()); }

  /// Sets this rank's flag; whether any rank has set its one, which takes them all down again. The latter is collective.
  void set_trigger();
  bool check_trigger();

  /// From now on SIGTERM and SIGUSR1 do not end the program but are kept for signal_received(). A second call does nothing.
  void catch_signals();
  /// The signal that came to any rank, or 0; all ranks get the same answer, so that they save and leave at the same step.
  /// Once it was there it stays. Collective.
  int signal_received();

  /// Calls f(batch_size) with smaller and smaller sizes until no rank runs out of memory; ranks decide together. Returns the size,
  /// or a pair of the size and what f returned.
  /// Requires: what f trains is prepared inside of it. Collective.
  /// Throws: UsageError (MU185) when nothing fits; what else f throws.
  template <class F>
  auto find_executable_batch_size(F&& f, const BatchSizeOptions& options = {}) {
    return runtime::find_executable_batch_size(group(), trial_group(), std::forward<F>(f), options);
  }

 protected:
  explicit Processes(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<Parts> parts_;

 private:
  static bool is_turn(const Parts& parts, const Turn& turn);
  static void print_line(const std::string& line);
  TrialGroup trial_group();
  template <class F>
  auto turn(const Turn& turn, F f) const {
    const auto here = [parts = parts_, turn] { return is_turn(*parts, turn); };
    return OnSomeRanks<std::remove_const_t<decltype(here)>, F>(here, std::move(f));
  }
};

}  // namespace muster::runtime
