#pragma once

#include <cstdint>

namespace muster::parallel {

/// Where the whole values of a unit are.
enum class UnitState : uint8_t {
  sharded,    ///< nowhere: each rank has its part
  gathering,  ///< being gathered
  whole,      ///< in this rank's memory
};

enum class UnitEvent : uint8_t {
  hint,     ///< they will be needed soon
  touch,    ///< an operator needs them now
  release,  ///< they are not needed for now
  update,   ///< the values of the ranks' parts have changed
};

/// The actions that an event requires.
struct UnitMove {
  bool finish = false;  ///< first wait for the running gather
  bool forget = false;  ///< or let it run on without waiting for it
  bool drop = false;    ///< free the memory of the whole values
  bool start = false;   ///< start a gather
  bool use = false;     ///< and wait for it
  UnitState next = UnitState::sharded;
  friend bool operator==(const UnitMove&, const UnitMove&) = default;
};

/// The state machine of a unit. A resident unit always has the memory of its whole values, and is gathered when parts
/// have changed.
UnitMove next_move(bool resident, UnitState state, UnitEvent event);

}  // namespace muster::parallel
