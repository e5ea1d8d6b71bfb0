#pragma once

#include <algorithm>

#include "hook/watched_storage.h"
#include "muster/optim/flat_parameters.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/sharded_options.h"
#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/one_copy.h"
#include "parallel/sharded/shard_layout.h"
#include "parallel/sharded/sharded_settings.h"
#include "parallel/sharded/unit_gradients.h"
#include "parallel/sharded/unit_values.h"
#include "parallel/sharded/units.h"

namespace muster::parallel {

/// The parameters of one unit: their values, their gradients, and what the program sees of both in the module's own
/// tensors. The model decides when values are unsharded and resharded. Thread safety: the caller's.
class ShardedUnit {
 public:
  /// Moves the parameters to the unit's memory; values are those of the main rank. Accesses are reported with
  /// `owner_id`. If ranks share one copy, it may be read once all have passed a barrier after this.
  /// Requires: groups, settings, streams, buffers and the copy, which may be nullptr, outlive this object. Collective.
  ShardedUnit(UnitPlan plan, const ShardGroups& groups, const ShardSettings& settings, const ShardStreams& streams,
              BufferPool& buffers, OneCopy* one_copy, const std::weak_ptr<hook::StorageWatcher>& watcher,
              int64_t owner_id);

  const std::string& name() const noexcept { return plan_.name; }
  bool is_root() const noexcept { return plan_.root; }
  /// Whether `other` is of this unit's module or of a module within it.
  bool covers(const ShardedUnit& other) const;
  size_t size() const noexcept { return plan_.parameters.size(); }
  const NamedTensor& parameter(size_t i) const { return plan_.parameters[i]; }
  /// The parameter that this view of the unit's memory, or this gradient placeholder, belongs to.
  const NamedTensor& parameter_of(const at::Tensor& view) const {
    return plan_.parameters[layout_.at(view.storage_offset())];
  }
  const optim::LocalParameter& local(size_t i) const { return locals_[i]; }
  /// This rank's shard of the parameter, under one of its names.
  TensorShard shard(size_t i, std::string name) const;
  /// Whether all ranks treat the parameter as trainable.
  bool trainable(size_t i) const { return trainable_[i]; }
  size_t trainable_count() const { return static_cast<size_t>(std::ranges::count(trainable_, 1)); }
  /// The name of a parameter that is no longer in the unit's memory; empty if all are.
  std::string misplaced() const;
  /// Number of trainable parameters that require a gradient now.
  size_t awaited_count() const;
  /// Allocates gradients for all parameters of the unit, unless it has them. `on_all_ranks`: every rank does so now.
  void allocate_gradients(bool on_all_ranks = false);
  /// Makes the parameter trainable. Requires: allocate_gradients().
  void add_unfrozen(size_t i) { trainable_[i] = true; }

  /// Returns the memory that the unit does not keep permanently. Requires: nobody uses the unit any more.
  void release_memory();
  /// Bytes that are allocated permanently.
  int64_t held_bytes() const { return values_.held_bytes() + (gradients_ ? gradients_->held_bytes() : 0); }
  /// Number of the parameters' elements, without padding.
  int64_t elements() const noexcept { return elements_; }
  int64_t padded_elements() const noexcept { return layout_.total(); }

  UnitValues& values() noexcept { return values_; }
  const UnitValues& values() const noexcept { return values_; }
  /// nullptr if no parameter is trainable.
  UnitGradients* gradients() noexcept { return gradients_.get(); }
  const UnitGradients* gradients() const noexcept { return gradients_.get(); }
  /// Takes a full gradient that autograd has computed; see UnitGradients::take().
  void take_gradient(size_t i, const at::Tensor& gradient, bool last);
  void zero_gradient(size_t i, bool set_to_none);
  /// See the functions of ManagedModel.
  GradientParts gradient_parts(size_t i);
  void load_gradient(size_t i, const GradientParts& parts);
  /// Set and remove gradient placeholders. If a placeholder is already gone, hide_placeholders() clears the gradient,
  /// since the user has reset it. It does nothing while none is shown.
  /// Throws: UsageError (MU578) from hide_placeholders(), which then changes nothing.
  void show_placeholders();
  void hide_placeholders();
  /// Whether parameter i has a reduced gradient that the user has not reset.
  bool has_reduced_gradient(size_t i) const;
  void drop_reduced_gradient(size_t i);
  /// Whether a step uses the gradient of parameter i: there is one, and the user has not reset it.
  /// Throws: UsageError (MU578) if grad() is a tensor of the user's; (MU579) if the gradient was never reduced.
  bool has_gradient(size_t i) const;

 private:
  void refuse_assigned_gradient(size_t i) const;
  void show_placeholder(size_t i);
  at::Tensor new_placeholder(size_t i, const at::Tensor& like) const;

  const UnitPlan plan_;
  const ShardGroups& groups_;
  const ShardSettings& settings_;
  const ShardStreams& streams_;
  BufferPool& buffers_;
  const ShardLayout layout_;
  UnitValues values_;
  hook::WatchedStorage placeholder_memory_;
  std::unique_ptr<UnitGradients> gradients_;
  std::vector<optim::LocalParameter> locals_;
  std::vector<at::Tensor> placeholders_;
  bool placeholders_shown_ = false;
  std::vector<char> trainable_;
  int64_t elements_ = 0;
};

}  // namespace muster::parallel
