#pragma once

#include "muster/dist/communicator.h"
#include "muster/hook/key_fallback.h"
#include "muster/optim/flat_source.h"
#include "muster/parallel/managed_model.h"
#include "parallel/shard_layout.h"
#include "parallel/units.h"

#include <memory>
#include <string>
#include <vector>

namespace muster::parallel {

/// The parameters of one unit: this rank's part of them, the memory they are gathered into, and their gradients.
/// Knows nothing of when; that is the model's affair. Thread safety: the caller's.
class ShardedUnit {
 public:
  /// Moves the parameters onto memory that is freed at once; values are those of rank 0. Touches are reported with `tag`.
  /// Collective.
  ShardedUnit(UnitPlan plan, dist::Communicator group, const std::weak_ptr<hook::StorageWatcher>& watcher, int64_t tag);

  const std::string& name() const noexcept { return plan_.name; }
  bool is_root() const noexcept { return plan_.root; }
  size_t size() const noexcept { return plan_.parameters.size(); }
  const NamedTensor& parameter(size_t i) const { return plan_.parameters[i]; }
  /// The parameter that this view of the unit's memory, or of its gradients' stand-ins, belongs to.
  const NamedTensor& parameter_of(const at::Tensor& view) const { return plan_.parameters[layout_.at(view.storage_offset())]; }
  const optim::FlatPiece& piece(size_t i) const { return pieces_[i]; }
  /// What this rank holds of the parameter, under one of its names.
  ParameterPart part(size_t i, std::string name) const;
  bool trainable(size_t i) const { return trainable_[i]; }
  size_t trainable_count() const noexcept { return trainable_count_; }
  /// The name of a parameter that no longer lies in the unit's memory; empty if all do.
  std::string misplaced() const;

  bool gathered() const { return memory_.filled(); }
  /// Collective.
  void gather();
  void release() { memory_.drop(); }
  int64_t gathered_bytes() const { return layout_.total() * values_.element_size(); }
  int64_t held_bytes() const { return values_.nbytes(); }
  /// Whole values, apart from the unit's own memory; undefined on other ranks than 0 if `main_only`. Collective.
  std::vector<at::Tensor> whole_values(bool main_only) const;

  /// Adds a whole gradient to what waits for reduce().
  void take_gradient(size_t i, const at::Tensor& gradient);
  /// Something waits.
  bool waiting() const;
  /// Forgets what waits.
  void drop_waiting();
  /// Scales by 1/size, sums over ranks, adds this rank's part to the pieces' gradients. Collective.
  void reduce();
  /// Whether the parameter's gradient counts in a step.
  bool counted(size_t i) const { return counted_[i]; }
  void zero_gradient(size_t i, bool set_to_none);
  /// What is counted and what waits.
  void scale_gradient(size_t i, double factor);
  /// Puts a stand-in where the user looks for a gradient, and takes it away. The latter takes a stand-in that is gone
  /// already for a wish to forget the gradient.
  void show_stand_ins();
  void hide_stand_ins();

 private:
  at::Tensor waiting_part(size_t i, int rank, int64_t& start);
  void clear_waiting(size_t i);

  UnitPlan plan_;
  dist::Communicator group_;
  ShardLayout layout_;
  hook::WatchedStorage memory_, stand_in_memory_;
  at::Tensor values_, gradients_;
  at::Tensor waiting_;   // one row per rank: its chunk of gradients, then a flag per parameter that got one
  std::vector<optim::FlatPiece> pieces_;
  std::vector<at::Tensor> stand_ins_;
  std::vector<char> trainable_, waits_, counted_;
  size_t trainable_count_ = 0;
};

}  // namespace muster::parallel
