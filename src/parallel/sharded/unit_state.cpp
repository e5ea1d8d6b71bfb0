#include "parallel/sharded/unit_state.h"

#include <array>
#include <cstddef>

namespace muster::parallel {
namespace {

constexpr auto kSharded = UnitState::sharded, kUnsharding = UnitState::unsharding, kUnsharded = UnitState::unsharded;

using Row = std::array<UnitTransition, 4>;  // by event: prefetch, access, reshard, update
using Table = std::array<Row, 3>;           // by state: sharded, unsharding, unsharded

constexpr Table kReshards{{
    {{{.start = true, .next = kUnsharding},
      {.start = true, .wait = true, .next = kUnsharded},
      {.next = kSharded},
      {.next = kSharded}}},
    {{{.next = kUnsharding},
      {.wait_first = true, .next = kUnsharded},
      {.detach = true, .next = kSharded},
      {.detach = true, .next = kSharded}}},
    {{{.next = kUnsharded}, {.next = kUnsharded}, {.free = true, .next = kSharded}, {.free = true, .next = kSharded}}},
}};

// Its memory always exists, so a new gather may write to it only when the last gather has ended.
constexpr Table kStaysUnsharded{{
    {{{.start = true, .next = kUnsharding},
      {.start = true, .wait = true, .next = kUnsharded},
      {.next = kSharded},
      {.start = true, .next = kUnsharding}}},
    {{{.next = kUnsharding},
      {.wait_first = true, .next = kUnsharded},
      {.next = kUnsharding},
      {.wait_first = true, .start = true, .next = kUnsharding}}},
    {{{.next = kUnsharded}, {.next = kUnsharded}, {.next = kUnsharded}, {.start = true, .next = kUnsharding}}},
}};

}  // namespace

UnitTransition transition(bool stays_unsharded, UnitState state, UnitEvent event) {
  return (stays_unsharded ? kStaysUnsharded : kReshards)[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace muster::parallel
