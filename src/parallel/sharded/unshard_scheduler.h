#pragma once

#include <array>

#include "parallel/sharded/sharded_settings.h"
#include "parallel/sharded/sharded_unit.h"
#include "parallel/sharded/unit_values.h"

namespace muster::parallel {

/// The order in which the last pass, forward or backward, used the units of a model, and how far the current pass has
/// followed it. Ranks that run one program have equal orders, so they start equal collectives.
class ExecutionOrder {
 public:
  /// A pass begins.
  void begin();
  /// The pass moved to this unit from another one.
  void came_to(size_t unit);
  /// The unit that the last pass used `ahead` places after the next one (0: the next one); nullopt if the current pass
  /// has deviated.
  std::optional<size_t> coming(size_t ahead) const;
  /// The pass is complete. The next one is expected to follow it.
  void end();

 private:
  std::vector<size_t> last_, now_;
  size_t at_ = 0;
  bool lost_ = false;
};

using Units = std::vector<std::unique_ptr<ShardedUnit>>;

enum class Pass : uint8_t { forward, backward };

/// Decides which units are unsharded in this rank's memory: those in use, the last one used, those around it (the root,
/// and units whose modules contain its module), and those that followed in the last pass. The latter are only
/// prefetched; ranks that run one program prefetch equal units.
/// Thread safety: the caller's.
class UnshardScheduler {
 public:
  /// `before_gather`: called before a unit that does not stay unsharded is gathered. Requires: units and settings
  /// outlive this object. No unit is added later.
  UnshardScheduler(const Units& units, const ShardSettings& settings, std::function<void(size_t unit)> before_gather);

  /// `prefetches`: a backward gathers the unit that came first in the last backward. Collective in that case.
  void begin(Pass pass, bool prefetches = false);
  void end(Pass pass) { orders_[static_cast<size_t>(pass)].end(); }
  /// When this returns, the unit is unsharded, and it stays so until leave(). `keeps`: other units stay unsharded, too.
  /// `replay`: see hook::StorageAccess; the units of the last replay stay unsharded for the backward that follows it,
  /// until they are resharded or another replay begins. Collective if the unit was not unsharded.
  void use(size_t unit, Pass pass, bool keeps, int64_t replay = 0);
  void leave(size_t unit) noexcept { --in_use_[unit]; }
  /// Marks the unit as in use until leave(), by the current stream. Requires: it is unsharded.
  void hold(size_t unit);
  /// Reshards the unit unless it is in use or stays unsharded.
  void reshard(size_t unit);
  void reshard_all(bool keep_roots);
  /// Takes part in a gather that other ranks need. `from_post_forward`: of what they kept after their forward.
  /// Collective.
  void follow_gather(size_t unit, bool from_post_forward);
  /// Reshards all units, and forgets which came next in the last passes.
  void forget_passes();
  /// The values of the unit's shards have changed. Collective if the unit stays unsharded.
  void update(size_t unit);
  /// Waits for the running gather; the current stream waits, too.
  void wait(size_t unit);

  int64_t live_bytes() const noexcept { return live_; }
  int64_t peak_bytes() const noexcept { return peak_; }
  int64_t gathers() const noexcept { return gathers_; }
  /// Counts live bytes again. Requires: other code has begun or ended full parameters of units.
  void recount();

 private:
  void handle(size_t unit, UnitEvent event);
  std::vector<size_t> coming_units(const ExecutionOrder& order, size_t current) const;
  void make_room(size_t current, const std::vector<size_t>& coming, bool keeps);

  const Units& units_;
  const ShardSettings& settings_;
  const std::function<void(size_t unit)> before_gather_;
  std::array<ExecutionOrder, 2> orders_;
  std::vector<int> in_use_;
  int64_t replay_ = 0;                // the last one of this pass
  std::vector<int64_t> replayed_by_;  // by unit: the last replay that used it
  size_t latest_;                     // the unit used last in this pass
  int64_t live_ = 0, peak_ = 0, gathers_ = 0;
};

}  // namespace muster::parallel
