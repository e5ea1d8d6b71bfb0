#pragma once

#include <cstdint>

namespace muster::parallel {

/// Where the full parameters of a unit are.
enum class UnitState : uint8_t {
  sharded,     ///< nowhere: each rank has its shard
  unsharding,  ///< being gathered
  unsharded,   ///< in this rank's memory
};

enum class UnitEvent : uint8_t {
  prefetch,  ///< they will be needed soon
  access,    ///< an operator needs them now
  reshard,   ///< they are not needed for now
  update,    ///< the values of the ranks' shards have changed
};

/// The actions that an event requires.
struct UnitTransition {
  bool wait_first = false;  ///< first wait for the running gather
  bool detach = false;      ///< or let it run on without waiting for it
  bool free = false;        ///< free the memory of the full parameters
  bool start = false;       ///< start a gather
  bool wait = false;        ///< and wait for it
  UnitState next = UnitState::sharded;
  friend bool operator==(const UnitTransition&, const UnitTransition&) = default;
};

/// The state machine of a unit. A unit that stays unsharded always has the memory of its full parameters, and is
/// gathered when shards have changed.
UnitTransition transition(bool stays_unsharded, UnitState state, UnitEvent event);

}  // namespace muster::parallel
