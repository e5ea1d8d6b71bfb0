#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include "base/mutex.h"
#include "graph/budget.h"
#include "graph/reused.h"

namespace muster::graph {

/// How a tensor lies in its memory. Its sizes and strides are ranges of what Operations has of all layouts.
struct Layout {
  int64_t offset;  ///< elements from the begin of the memory
  uint32_t first_dim;
  uint32_t dims;
  at::ScalarType dtype;
  bool conjugate, negative;
};

/// Calls f(element, tensor) for the tensor that the value is (element -1), or for those in the list that it is.
template <class F>
void each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(-1, value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    int32_t i = 0;
    for (const auto& element : value.toListRef()) {
      if (element.isTensor()) f(i, element.toTensor());
      ++i;
    }
  }
}

/// The device on which an operator runs and draws: that of its first tensor, or of its argument.
at::Device device_of(std::span<const c10::IValue> arguments);
/// The same tensor without its graph. It shares memory and version counter.
at::Tensor alias_of(const at::Tensor& tensor);
/// 0 for tensors of inference mode, which have no version.
uint32_t version_of(const at::Tensor& tensor) noexcept;

/// A number for the contents that a recorded operator gave to a piece of memory: by making it, or by writing it.
struct ContentsId {
  static constexpr uint32_t kNone = 0x7fffffff;
  uint32_t index : 31 = kNone;
  uint32_t of_parameters : 1 = 0;  ///< among the operations that read parameters only, not in the region
  bool known() const noexcept { return index != kNone; }
};

struct Contents {
  uint32_t operation;  ///< which made or wrote it
  uint32_t output;  ///< number of the tensor among the operator's results, lists unrolled; unused if `before` is known
  uint32_t memory;  ///< index of the first contents of this memory
  uint32_t before;  ///< contents that the operator wrote over; ContentsId::kNone if it made the memory
  at::Tensor kept = {};  ///< the result of an operator whose results are kept
  uint32_t kept_version = 0;
};

/// A tensor among the arguments of a recorded operator.
struct Input {
  uint32_t argument;
  int32_t element;      ///< of a list; -1 if the argument is the tensor itself
  ContentsId contents;  ///< unknown: the tensor itself is among the operation's arguments
  union {
    uint32_t version;  ///< of such a tensor, when the operator ran
    uint32_t layout;   ///< of the others: an index, where the contents stand
  };
};

/// One recorded operator. Its arguments and inputs are ranges of what Operations has of all operators: a small block of
/// memory for each would lie between the large ones of tensors, and keep them apart when they are freed.
struct Operation {
  explicit Operation(const c10::OperatorHandle& op) : op(op) {}

  c10::OperatorHandle op;
  at::Generator generator;  ///< of a random operator: a copy from before it ran
  uint64_t copied = 0;      ///< bit i: argument i is a statistic that it updates, and a replay gives it a copy
  uint32_t first_argument = 0, argument_count = 0;
  uint32_t first_input = 0, input_count = 0;
  uint32_t first_contents = 0, contents_count = 0;
  bool grad_mode = true;  ///< whether gradients were on when it ran
};

/// Operators in the order in which they ran.
struct Operations {
  std::vector<Operation> operations;
  std::vector<c10::IValue> arguments;  ///< tensors that other operations made are left out
  std::vector<Input> inputs;
  std::vector<Contents> contents;
  std::vector<Layout> layouts;
  std::vector<int64_t> dims;  ///< by layout: its sizes, then its strides; longer than what is used
  uint32_t used_dims = 0;

  /// The index of the tensor's layout.
  uint32_t add_layout(const at::Tensor& tensor);
  bool has_layout(uint32_t layout, const at::Tensor& tensor) const;
  /// A tensor in the memory of `base`. It shares neither version nor graph with it.
  at::Tensor in_memory_of(const at::Tensor& base, uint32_t layout) const;

  void clear() {
    operations.clear();
    arguments.clear();
    inputs.clear();
    contents.clear();
    layouts.clear();
    used_dims = 0;
  }
  std::span<c10::IValue> arguments_of(const Operation& operation) {
    return std::span(arguments).subspan(operation.first_argument, operation.argument_count);
  }
  std::span<const c10::IValue> arguments_of(const Operation& operation) const {
    return std::span(arguments).subspan(operation.first_argument, operation.argument_count);
  }
  std::span<const Input> inputs_of(const Operation& operation) const {
    return std::span(inputs).subspan(operation.first_input, operation.input_count);
  }
};

/// A tensor that autograd saved in a region.
struct SavedTensor {
  at::Tensor held;                 ///< undefined if a replay makes it again
  std::optional<uint64_t> digest;  ///< of its values, if the replay is to be checked
  uint32_t version = 0;            ///< of `held` when it was saved
  bool gone = false;               ///< autograd needs it no more
  ContentsId contents;
  uint32_t layout = 0;  ///< an index, where the contents stand
  at::Tensor replayed;  ///< while backward is in this region
};

/// The cost of a block, while threads measure it.
struct MeasuredCost {
  BlockCost get() const {
    const base::Lock lock(mutex);
    return value;
  }
  void add(const BlockCost& more) {
    const base::Lock lock(mutex);
    value.kept_bytes += more.kept_bytes;
    value.returned_bytes += more.returned_bytes;
    value.flops += more.flops;
    value.seconds += more.seconds;
  }
  mutable base::Mutex mutex;
  BlockCost value MUSTER_GUARDED_BY(mutex);
};

/// What happened between the first use of one block's parameters and of the next one's: the operators, and what
/// autograd saved of them. The first tensor that backward asks for replays all operators that saved tensors of this
/// region need, in their order; it stops at the last one of these.
/// Thread safety: a region is recorded by one thread, and replayed by any.
class Region {
 public:
  /// `of_parameters`: operators that read parameters only, such as casts, of all regions of a forward. They are
  /// replayed wherever a region needs them. `checked`: whether operators are to do the same in a replay.
  /// `cost`: what its first replay is added to, if the block is measured.
  Region(std::string block, std::shared_ptr<Reused<Operations>> of_parameters, bool checked,
         std::shared_ptr<MeasuredCost> cost);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& block() const noexcept { return block_; }
  bool checked() const noexcept { return checked_; }
  const std::shared_ptr<MeasuredCost>& cost() const noexcept { return cost_; }
  Operations& recorded() noexcept { return lists_->recorded; }
  /// Adds a tensor that autograd saves, and returns its number.
  size_t add(SavedTensor saved);
  /// Only while the region is recorded.
  SavedTensor& saved(size_t number) { return lists_->saved[number]; }
  /// Autograd needs the tensor no more.
  void forget(size_t number);
  /// Somebody is about to write into this memory: what the region holds of it moves to a copy. What autograd saved
  /// stays, since it would be an error without recompute, too.
  void keep_copy_of(const c10::StorageImpl* memory);
  /// Forgets operators that no saved tensor needs, with the inputs that they hold. Nothing is recorded after it.
  void close();
  /// Calls f(tensor) for what it holds until backward. Only after close().
  void each_held(c10::function_ref<void(const at::Tensor&)> f) const;

  /// The values that were saved. What this thread has replayed of another region is freed, unless autograd holds it.
  /// Throws: UsageError (MU586) if a tensor that the region holds was changed in place, (MU588) if an operator gave
  /// other values than before.
  static at::Tensor unpack(const std::shared_ptr<Region>& region, size_t number);

 private:
  class Replay;
  at::Tensor unpack(size_t number);
  void order_after_replay(const at::Tensor& replayed);
  void leave();
  void check_version(const at::Tensor& held, uint32_t version, const Operation* reader) const;

  const std::string block_;
  const bool checked_;
  std::shared_ptr<MeasuredCost> cost_;
  const std::shared_ptr<Reused<Operations>> of_parameters_;
  base::Mutex mutex_;
  struct Lists {
    Operations recorded;             // not guarded: written by the thread that records, read afterwards
    std::vector<SavedTensor> saved;  // the same, but for what replays and autograd change under the mutex

    void clear() {
      recorded.clear();
      saved.clear();
    }
  };
  const Reused<Lists> lists_;
  // Of the last replay on a device:
  std::optional<c10::Stream> replayed_on_;
  std::optional<c10::Event> replay_ended_;
};

/// What has been recorded and replayed in this process. Thread-safe.
struct ReplayCounts {
  int64_t recorded = 0;  ///< operators
  int64_t replayed = 0;  ///< operators
  int64_t replays = 0;   ///< how often a region was replayed
};
ReplayCounts replay_counts() noexcept;

}  // namespace muster::graph
