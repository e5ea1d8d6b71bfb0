#pragma once

#include "base/mutex.h"
#include "hook/watched_storage.h"
#include "optim/flat.h"
#include "parallel/backward_watch.h"
#include "parallel/frozen_parameters.h"
#include "parallel/join.h"
#include "parallel/module_buffers.h"
#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/one_copy.h"
#include "parallel/sharded/reduction_scheduler.h"
#include "parallel/sharded/sharded_settings.h"
#include "parallel/sharded/unshard_scheduler.h"
#include "parallel/sharded_model.h"

namespace muster::parallel {

/// How many gradients of each unit a backward has brought, of those that it can bring. Thread safety: the caller's.
class ArrivedGradients {
 public:
  /// A backward begins that can bring this many gradients of each unit.
  void begin(std::vector<size_t> awaited) {
    arrived_.assign(awaited.size(), 0);
    awaited_ = std::move(awaited);
    unfrozen_ = false;
  }
  /// Whether all awaited gradients of the unit have arrived.
  bool are_complete(size_t unit) const { return arrived_[unit] >= awaited_[unit]; }
  /// Adds a gradient of the unit. Returns whether it is the last one that is awaited.
  bool add(size_t unit) { return ++arrived_[unit] == awaited_[unit]; }
  /// Adds a gradient of a parameter that the ranks have not yet agreed to train.
  void add_unfrozen() noexcept { unfrozen_ = true; }
  /// The backward ends. Returns whether it has brought any gradient.
  bool take();

 private:
  std::vector<size_t> arrived_, awaited_;  // by unit
  bool unfrozen_ = false;
};

/// What a ShardedModel does when operators use parameters, and when gradients arrive: hooks and watched storages call
/// it. Storages may outlive the model, and hold weak references to the engine, which is therefore not the model itself.
/// Thread safety: hooks lock the mutex, and so do with_full_params(), describe() and stats(). The caller of the other
/// functions holds it.
class ShardedEngine final : public hook::StorageWatcher,
                            public optim::ParameterOwner,
                            public std::enable_shared_from_this<ShardedEngine>,
                            private BackwardActions {
 public:
  ShardedEngine(ShardedModel& model, torch::nn::Module& module, ShardGroups groups, ShardSettings settings);
  ~ShardedEngine() override;
  /// Call it once, when a shared_ptr owns this object. Collective.
  void build(std::vector<UnitPlan> plans) MUSTER_NO_THREAD_SAFETY_ANALYSIS;  // no other thread knows this object yet

  void before_access(const hook::StorageAccess& access) override;
  void after_access(int64_t owner_id) noexcept override;
  optim::FlatParameters& flat_parameters() noexcept override { return model_; }

  void enter_forward() MUSTER_REQUIRES(watch.mutex());
  void leave_forward() noexcept MUSTER_REQUIRES(watch.mutex());
  void register_with(const std::shared_ptr<ReductionRecord>& record,
                     int64_t index) MUSTER_NO_THREAD_SAFETY_ANALYSIS {  // called before the first backward
    reductions_->register_with(record, index);
  }

  /// Starts a reduction of all units without a backward, after BackwardWatch::start_alone(). Collective.
  void start_reductions() MUSTER_REQUIRES(watch.mutex());
  /// See Joinable.
  void end_session() MUSTER_REQUIRES(watch.mutex());
  void follow(const JoinStep& step) MUSTER_REQUIRES(watch.mutex());
  /// Sums of gradients are divided by the number of participants that they have now.
  void adopt_divisor();
  std::string gradient_states() const;
  void adopt_gradient_states(const std::string& states) MUSTER_REQUIRES(watch.mutex());

  /// Shards may be written between these two calls. `of_units`: the units whose values have changed.
  /// Collective: both, if the ranks of a host share one copy of the values; end_update() also if a changed unit stays
  /// unsharded.
  void begin_update() MUSTER_REQUIRES(watch.mutex());
  void end_update(const std::vector<bool>& of_units) MUSTER_REQUIRES(watch.mutex());
  /// Called instead of end_update() if writing the values has failed. Returns whether no rank waits for this one.
  bool abandon_update(const std::string& cause) MUSTER_REQUIRES(watch.mutex());
  /// Waits for gathers of units that stay unsharded, so that shards may be written.
  void wait_for_values() MUSTER_REQUIRES(watch.mutex());
  /// Runs f with all full parameters in memory.
  void with_full_params(const std::function<void()>& f, const FullParamsOptions& how);

  const std::pair<size_t, size_t>* place(const at::Tensor& parameter) const {
    auto found = places.find(parameter.unsafeGetTensorImpl());
    return found == places.end() ? nullptr : &found->second;
  }
  std::string describe() const;
  ShardedModel::Stats stats() const;

  // Also used without the mutex between steps, by the thread that trains.
  torch::nn::Module& module;
  const ShardGroups groups;
  const ShardSettings settings;
  ShardStreams streams;
  BufferPool buffers;
  ModuleBuffers module_buffers;
  std::unique_ptr<OneCopy> one_copy;  // the copy that ranks share; nullptr if each rank gathers its own
  Units units;
  std::unordered_map<const c10::TensorImpl*, std::pair<size_t, size_t>>
      places;                   // unit of each parameter and index in it, by impl
  int64_t reduction_count = 0;  // number of reductions that have ended
  bool sync = true;
  Participants participants;  // the ranks that have batches

 private:
  enum class FullScope { none, reads, writes };

  [[noreturn]] void refuse(const hook::StorageAccess& access) const MUSTER_REQUIRES(watch.mutex());
  /// If ranks share memory, allocates gradients for as many units as are reduced at a time. Collective.
  void share_gradient_memory();
  bool accessed_in_scope(const hook::StorageAccess& access) const MUSTER_REQUIRES(watch.mutex());
  void begin_backward(BackwardState what) override MUSTER_REQUIRES(watch.mutex());
  void before_gradient(size_t leaf) override MUSTER_REQUIRES(watch.mutex());
  void gradient_arrived(size_t leaf, const at::Tensor& parameter) override MUSTER_REQUIRES(watch.mutex());
  void end_backward(BackwardState what, bool complete) override MUSTER_REQUIRES(watch.mutex());
  void discard_backward() noexcept override MUSTER_REQUIRES(watch.mutex());
  void hook_up(size_t unit, size_t i) MUSTER_REQUIRES(watch.mutex());
  void reduce() MUSTER_REQUIRES(watch.mutex());
  /// In a JoinSession, tells ranks without batches, before the first gradient of a reduction is scaled.
  void announce_reduction() MUSTER_REQUIRES(watch.mutex());
  /// The purpose of gathers in a pass, for errors. Ranks without batches do not know it.
  const char* in_session_or(const char* purpose) const;
  void free_post_forward_shards();
  /// Sets the purpose that errors name for later gathers.
  void name_gathers(const char* purpose);
  void check_parameters() const;
  /// Gives unfrozen parameters gradients and hooks. Their gradients are collected, and reduced as soon as the ranks
  /// have agreed.
  void watch_unfrozen() MUSTER_REQUIRES(watch.mutex());
  /// Compares what ranks have frozen and unfrozen. Gradients of unfrozen parameters are reduced after the others of a
  /// backward. Collective.
  void agree_on_freezing() MUSTER_REQUIRES(watch.mutex());
  /// Runs f, which ends or begins an update, or writes during one.
  void in_update(const std::function<void()>& f) MUSTER_REQUIRES(watch.mutex());
  void update(const std::vector<bool>& of_units) MUSTER_REQUIRES(watch.mutex());
  void begin_full_params(const FullParamsOptions& how);
  void end_full_params(const FullParamsOptions& how, bool write_back);

  ShardedModel& model_;
  std::optional<UnshardScheduler> unshard_scheduler_ MUSTER_GUARDED_BY(watch.mutex());
  std::optional<ReductionScheduler> reductions_ MUSTER_GUARDED_BY(watch.mutex());
  // By leaf of `watch`: unit, and index in it.
  std::vector<std::pair<size_t, size_t>> places_of_leaves_ MUSTER_GUARDED_BY(watch.mutex());
  ArrivedGradients arrived_ MUSTER_GUARDED_BY(watch.mutex());
  FreezingAgreement freezing_ MUSTER_GUARDED_BY(watch.mutex());
  int exceptions_ MUSTER_GUARDED_BY(watch.mutex()) = 0;  // number of exceptions in flight when the forward began
  // Whether a forward since the last backward recorded a graph.
  bool forward_trained_ MUSTER_GUARDED_BY(watch.mutex()) = false;
  FullScope scope_ MUSTER_GUARDED_BY(watch.mutex()) = FullScope::none;
  // Whether ranks without batches were told of a reduction that has not ended.
  bool announced_ MUSTER_GUARDED_BY(watch.mutex()) = false;

 public:
  BackwardWatch watch;  // last, because its hooks use the other members; its mutex is the engine's
};

}  // namespace muster::parallel
