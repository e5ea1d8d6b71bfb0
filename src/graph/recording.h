#pragma once  // for other rooms

#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include "graph/blocks.h"
#include "graph/region.h"
#include "graph/reused.h"
#include "graph/saved_tensors.h"
#include "hook/interceptor.h"

namespace muster::graph {

struct OperatorTraits;

/// Keeps the recorder of operators and the autograd engine that it needs out of the process.
inline constexpr hook::DisableVariable kRecorderSwitch{"MUSTER_NO_RECOMPUTE"};

/// Installs the recorder and its autograd engine, once per process, on the first call.
/// Throws: UsageError (MU587) if the environment forbids it, or if another library holds the dispatch key; as
/// install_engine().
/// Thread-safe.
void install_recorder();

/// Ends a function between two of its operators: once reach() was called, the next operator of this thread, unless it
/// is part of another one, throws Reached. The innermost limit counts.
/// Requires: install_recorder() was called.
/// Thread safety: made, used and destroyed by one thread.
class OperatorLimit {
 public:
  /// Not derived from std::exception, so that a handler in the function does not take it for an error.
  struct Reached {};

  OperatorLimit();
  ~OperatorLimit();
  OperatorLimit(const OperatorLimit&) = delete;
  OperatorLimit& operator=(const OperatorLimit&) = delete;

  void reach() noexcept { reached_ = true; }
  /// Sees one operator.
  void run(hook::Call& call);

 private:
  bool reached_ = false;
  int depth_ = 0;
  OperatorLimit* const outer_;
  const hook::InterceptorGuard on_;
};

/// While this object exists, what autograd saves on this thread inside a block is not kept: it is made again in
/// backward from what went into the block. A block begins where an operator first uses one of its parameters, and ends
/// where the next one begins or a parameter of no block is used. Recordings nest: the inner one records.
/// Nothing is recorded outside of blocks.
/// Requires: install_recorder() was called.
/// Thread safety: made, used and destroyed by one thread.
class Recording final : private SavedTensorScope {
 public:
  /// `blocks`: borrowed.
  explicit Recording(const Blocks& blocks);
  ~Recording() override;

  /// The innermost recording of this thread, or nullptr.
  static Recording* current() noexcept;
  bool in_block() const noexcept { return region_ != nullptr; }
  /// Sees one operator.
  void run(hook::Call& call);
  /// Notes what autograd saves, and returns its number in the region.
  size_t save(const at::Tensor& tensor);

 private:
  /// Where a parameter lies, and when it was last used.
  struct Parameter {
    int64_t begin, end;  // bytes of its memory
    int32_t block;       // -1: of none
    uint32_t next;       // another one in the same memory
    uint64_t region = 0, operation = 0;
  };
  /// The memory of a recorded tensor.
  struct Made {
    static constexpr uint32_t kNoLayout = 0xffffffff;
    explicit Made(c10::StorageImpl* storage) : storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)) {}
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being used again
    ContentsId contents;
    uint32_t layout = kNoLayout;  // of a tensor in this memory, where the contents stand
    bool unwritten = false;       // since it was made without values
    bool zeros = false;           // and no operator has written since it was made full of them
    /// Where a tensor's version differs, somebody has written without an operator that we saw. Tensors in one memory
    /// may have several counters, as those of unsafe_chunk have.
    std::pair<const void*, uint32_t> version;
    std::vector<std::pair<const void*, uint32_t>> more_versions;

    /// Whether the tensor was written by recorded operators only.
    bool knows(const at::Tensor& tensor);
    void written_by(const at::Tensor& tensor);
  };
  /// By memory. Freed in the order in which they were added, since the order of hashed addresses would leave the
  /// allocator's lists in another order in each run.
  class MadeMemory {
   public:
    Made* find(const c10::StorageImpl* storage) {
      if (places_.empty()) return nullptr;
      const auto place = places_.find(storage);
      return place == places_.end() ? nullptr : &all_[place->second];
    }
    /// nullptr if it is there.
    Made* add(c10::StorageImpl* storage) {
      if (!places_.emplace(storage, static_cast<uint32_t>(all_.size())).second) return nullptr;
      return &all_.emplace_back(storage);
    }
    void erase(const c10::StorageImpl* storage) { places_.erase(storage); }
    void clear() {
      places_.clear();
      all_.clear();
    }

   private:
    std::vector<Made> all_;
    ska::flat_hash_map<const c10::StorageImpl*, uint32_t> places_;
  };
  /// What record() notes of an operator before it runs.
  struct Noted;

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  void add_parameter(const at::Tensor& parameter, int32_t block);
  static void before_writes(std::span<const c10::IValue> arguments, const OperatorTraits& traits);
  void access(const c10::IValue& argument);
  void access(const at::Tensor& tensor);
  void begin_region(int32_t block);
  void end_region();
  int64_t add_memory(ska::flat_hash_set<const c10::StorageImpl*>& all, const at::Tensor& tensor) const;
  BlockCost measure_memory();
  /// nullptr for a tensor whose values did not all come from recorded operators.
  Made* find(const at::Tensor& tensor);
  void forget(const at::Tensor& tensor);
  void record(hook::Call& call, std::span<const c10::IValue> arguments, const OperatorTraits& traits);
  /// Runs the operator without seeing the operators that it calls.
  void run_unseen(hook::Call& call);
  /// The index of the tensor's layout, where its contents stand.
  uint32_t layout_of(Made& made, const at::Tensor& tensor);
  void note_input(Noted& noted, uint32_t argument, int32_t element, const at::Tensor& tensor);
  /// Whether the region has the operator now.
  bool finish(Noted& noted, const torch::jit::Stack& stack);
  ContentsId add_contents(bool of_parameters, Contents&& contents);
  /// Its arguments and inputs, from those of the region.
  void move_to_parameters(Operation& operation);
  void resolve_pending();

  const Blocks& blocks_;
  struct Tables {
    std::vector<Parameter> parameters;
    ska::flat_hash_map<const c10::StorageImpl*, uint32_t> places;  // of the first parameter in a memory
    MadeMemory made, made_of_parameters;
    /// What was saved inside the operator that runs, and is not known before it ends: by its number in the region.
    std::vector<std::pair<size_t, at::Tensor>> pending;
    // Of the region, if its block is measured. The memory may be gone by then, so that only its address is compared.
    ska::flat_hash_set<const c10::StorageImpl*> saved_memory;
    int64_t saved_bytes = 0;

    void clear() {
      parameters.clear();
      places.clear();
      made_of_parameters.clear();
    }
  };

  Reused<Tables> tables_;
  const std::shared_ptr<Reused<Operations>> of_parameters_ = std::make_shared<Reused<Operations>>();
  std::shared_ptr<Region> region_;  // nullptr outside of blocks
  int32_t block_ = -1;
  std::set<size_t> seen_;  // blocks whose first forward this is
  uint64_t region_number_ = 0, operation_number_ = 0;
  int depth_ = 0;  // of composite operators
  bool operator_runs_ = false;
  Recording* const outer_;
  const hook::InterceptorGuard on_;
};

}  // namespace muster::graph
