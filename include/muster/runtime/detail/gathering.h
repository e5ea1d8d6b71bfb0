#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/runtime/detail/gather_for_metrics.h"
#include "muster/runtime/detail/objects.h"
#include "muster/runtime/detail/state_access.h"
#include "muster/runtime/detail/values.h"

namespace muster {
template <class... T>
class MetricsCollector;
struct SplitOptions;
}  // namespace muster

namespace muster::runtime {

struct PadOptions;

/// The rows of the current batch of the loader in use; nullopt if there is none.
std::optional<StepRows> step_rows(const RuntimeState& state);

/// Collective operations on values: tensors in any nesting of tuples, lists, maps, optionals and structs.
/// Collective: every function unless it says otherwise, on every rank, with values of the same structure.
/// Throws: UsageError (MU065), on every rank, if lists, maps or optionals hold tensors in different places; (MU177) for
/// an undefined tensor, except in broadcast() on the receiving ranks.
class Gathering {
 public:
  /// Concatenates the tensors of all ranks along the first dimension, in rank order. A 0-dim tensor counts as one of
  /// shape [1].
  template <class... T>
  auto gather(const T&... values) const {
    return runtime::gather(group_of(*state_), values...);
  }
  /// As gather(), for values of the current batch: samples that the loader repeated to fill its last step are cut off,
  /// so that every sample counts once. This applies to tensors with one row per sample of this rank's batch, and to
  /// lists of strings or numbers with one element per sample; any other tensor or list is gathered whole. If a value
  /// has this length by chance but does not belong to the batch, pass it as per_rank(value); the result is a plain
  /// value again. If ranks have different numbers of batches, use collector().
  template <class... T>
  auto gather_for_metrics(const T&... values) const {
    return runtime::gather_for_metrics(group_of(*state_), step_rows(*state_), values...);
  }
  /// Returns a collector for values of the batches of an epoch, which gathers them once at the end: exact for every
  /// loader. Requires: the program includes muster/runtime/metrics.h. Not collective.
  template <class... T>
  MetricsCollector<T...> collector() const {
    return MetricsCollector<T...>(group_of(*state_), [state = state_] { return step_rows(*state); });
  }
  /// Stacks the tensors of all ranks along a new first dimension, whose size is the world size.
  template <class T>
  T all_gather(const T& value) const {
    return runtime::all_gather(group_of(*state_), value);
  }
  /// Returns the "sum", "mean", "min", "max" or "product" over ranks as a new value: of every tensor in the value, or
  /// of a single number (numbers beside tensors are not reduced). Throws: ConfigError (MU054) for a mean of integers.
  template <class T>
  T reduce(const T& value, std::string_view op = "sum") const {
    return runtime::reduce(group_of(*state_), value, op);
  }
  /// The value of rank `source`.
  template <class T>
  T broadcast(const T& value, int source = 0) const {
    return runtime::broadcast(group_of(*state_), value, source);
  }
  /// Pads tensors with options.value so that dimension options.dim is as long as on the rank where it is longest. A
  /// 0-dim tensor counts as one of shape [1]. Throws: ConfigError (MU060) if a tensor does not have this dimension.
  template <class T>
  T pad_across_processes(const T& value, const extra_t<T, PadOptions>& options = {}) const;

  /// Returns the value of rank `source`, sent as bytes: strings, numbers, lists and maps of them, structs; see
  /// tree/detail/pack.h.
  template <class T>
  T broadcast_object(const T& value, int source = 0) const {
    return runtime::broadcast_object(group_of(*state_), value, source);
  }
  /// Returns a list of such values of all ranks; if the values are lists, one list of all their elements.
  template <class T>
  auto gather_object(const T& value) const {
    return runtime::gather_object(group_of(*state_), value);
  }

  /// Returns this rank's part of a list or a tensor, or of every one in a map, tuple or struct. Parts are contiguous;
  /// if the length is not divisible by the world size, the first ranks get one element more. Not collective.
  template <class T>
  T split_between_processes(const T& value, const extra_t<T, SplitOptions>& options = {}) const;

 protected:
  explicit Gathering(std::shared_ptr<RuntimeState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<RuntimeState> state_;
};

}  // namespace muster::runtime
