#pragma once

#include <cstdint>

namespace muster::parallel {

/// The location of the full parameters of a unit.
enum class UnitState : uint8_t {
  sharded,     ///< nowhere: each rank has only its shard
  unsharding,  ///< being gathered
  unsharded,   ///< in this rank's memory
};

enum class UnitEvent : uint8_t {
  prefetch,  ///< the parameters will be needed soon
  access,    ///< an operator needs them now
  reshard,   ///< the parameters are not needed for now
  update,    ///< the values of the ranks' shards have changed
};

/// The actions that an event requires, in this order.
struct UnitTransition {
  bool wait_first = false;  ///< wait for the running gather first
  bool detach = false;      ///< leave the running gather alone without waiting for it
  bool free = false;        ///< free the memory of the full parameters
  bool start = false;       ///< start a gather
  bool wait = false;        ///< wait for the gather that was started
  UnitState next = UnitState::sharded;
  friend bool operator==(const UnitTransition&, const UnitTransition&) = default;
};

/// The state machine of a unit. A unit that stays unsharded always has memory for its full parameters, and is gathered
/// again when shards have changed.
UnitTransition transition(bool stays_unsharded, UnitState state, UnitEvent event);

}  // namespace muster::parallel
