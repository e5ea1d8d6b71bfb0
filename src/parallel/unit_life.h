#pragma once

#include <cstdint>

namespace muster::parallel {

/// Where the whole values of a unit are.
enum class UnitState : uint8_t {
  sharded,     ///< nowhere: each rank has its part
  gathering,   ///< under way
  whole,       ///< in this rank's memory
};

enum class UnitEvent : uint8_t {
  hint,      ///< they will be needed soon
  touch,     ///< an operator needs them now
  release,   ///< nobody needs them for now
  update,    ///< the ranks' parts have got other values
};

/// What an event asks for.
struct UnitMove {
  bool finish = false;    ///< first wait for the gather that is under way
  bool forget = false;    ///< or let it run out unwatched
  bool drop = false;      ///< give the memory of the whole values back
  bool start = false;     ///< start a gather
  bool use = false;       ///< and wait for it
  UnitState next = UnitState::sharded;
  friend bool operator==(const UnitMove&, const UnitMove&) = default;
};

/// The life of a unit. A resident one always has the memory of its whole values, and is gathered when parts have changed.
UnitMove next_move(bool resident, UnitState state, UnitEvent event);

}  // namespace muster::parallel
