#pragma once

#include "muster/runtime/metrics.h"
#include "muster/runtime/objects.h"
#include "muster/runtime/processes.h"
#include "muster/runtime/split.h"
#include "muster/runtime/values.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::runtime {

/// Values over ranks. Any nesting of tensors works: tuples, lists, maps, optionals, structs.
/// Collective: all of it but what says otherwise, on every rank, with values of one structure.
/// Throws: UsageError (MU065), on every rank, if lists, maps or optionals hold tensors in different places; (MU177) for a tensor
/// that is undefined, but for broadcast() on the ranks that receive.
class Gathering : public Processes {
 public:
  /// All ranks' tensors, joined along the first dimension in rank order; a tensor without dimensions counts as one of [1].
  template <class... T>
  auto gather(const T&... values) const { return runtime::gather(group(), values...); }
  /// As gather(), for values of the batch in hand: what the loader repeated to fill up its last step is cut off, so that every
  /// sample counts once. That is so for tensors with one row per sample of this rank's batch, and for lists of texts or numbers;
  /// any other tensor is gathered as it is. What has as many rows by chance, and stands for no batch, is passed as once(value);
  /// it comes back without the mark. Where ranks have different numbers of batches, use collector().
  template <class... T>
  auto gather_for_metrics(const T&... values) const { return runtime::gather_for_metrics(group(), step_rows(*parts_), values...); }
  /// Collects values of the batches of an epoch, to gather them once at its end: exact for every loader. Not collective.
  template <class... T>
  MetricsCollector<T...> collector() const {
    return MetricsCollector<T...>(group(), [parts = parts_] { return step_rows(*parts); });
  }
  /// All ranks' tensors stacked in a new first dimension, of the size of the world.
  template <class T>
  T all_gather(const T& value) const { return runtime::all_gather(group(), value); }
  /// The "sum", "mean", "min", "max" or "product" over ranks, as a new value: of every tensor in it, or of a number by itself (a number
  /// beside tensors stays as it is).
  /// Throws: ConfigError (MU054) for a mean of whole numbers.
  template <class T>
  T reduce(const T& value, std::string_view op = "sum") const { return runtime::reduce(group(), value, op); }
  /// The value of rank `source`.
  template <class T>
  T broadcast(const T& value, int source = 0) const { return runtime::broadcast(group(), value, source); }
  /// Tensors filled up with `value` so that dimension `dim` is as long as on the rank where it is longest. A tensor without
  /// dimensions counts as one of [1]. Throws: ConfigError (MU060) for a dimension that is not there.
  template <class T>
  T pad_across_processes(const T& value, PadOptions options = {}) const { return runtime::pad_across_processes(group(), value, options); }

  /// The value of rank `source`, sent as bytes: texts, numbers, lists and maps of them, structs; see tree/pack.h.
  template <class T>
  T broadcast_object(const T& value, int source = 0) const { return runtime::broadcast_object(group(), value, source); }
  /// Such values of all ranks in a list; of lists, their elements in one list.
  template <class T>
  auto gather_object(const T& value) const { return runtime::gather_object(group(), value); }

  /// This rank's part of a list, a tensor, or a map, tuple or struct of them: contiguous parts, the first ranks get one more
  /// where it does not come out even. Not collective.
  template <class T>
  T split_between_processes(const T& value, const SplitOptions& options = {}) const {
    return runtime::split_between_processes(rank(), world_size(), value, options);
  }

 protected:
  using Processes::Processes;

 private:
  /// Of the loader in use; nothing without one.
  static std::optional<StepRows> step_rows(const Parts& parts);
};

}  // namespace muster::runtime
