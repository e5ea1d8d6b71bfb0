#include "parallel/unit_life.h"

#include <array>
#include <cstddef>

namespace muster::parallel {
namespace {

constexpr auto kSharded = UnitState::sharded, kGathering = UnitState::gathering, kWhole = UnitState::whole;

using Row = std::array<UnitMove, 4>;  // by event: hint, touch, release, update
using Table = std::array<Row, 3>;     // by state: sharded, gathering, whole

constexpr Table kComing{{
    {{{.start = true, .next = kGathering},
      {.start = true, .use = true, .next = kWhole},
      {.next = kSharded},
      {.next = kSharded}}},
    {{{.next = kGathering},
      {.finish = true, .next = kWhole},
      {.forget = true, .next = kSharded},
      {.forget = true, .next = kSharded}}},
    {{{.next = kWhole}, {.next = kWhole}, {.drop = true, .next = kSharded}, {.drop = true, .next = kSharded}}},
}};

// Its memory is there, so what is in it may only be gathered over when the last gather has ended.
constexpr Table kResident{{
    {{{.start = true, .next = kGathering},
      {.start = true, .use = true, .next = kWhole},
      {.next = kSharded},
      {.start = true, .next = kGathering}}},
    {{{.next = kGathering},
      {.finish = true, .next = kWhole},
      {.next = kGathering},
      {.finish = true, .start = true, .next = kGathering}}},
    {{{.next = kWhole}, {.next = kWhole}, {.next = kWhole}, {.start = true, .next = kGathering}}},
}};

}  // namespace

UnitMove next_move(bool resident, UnitState state, UnitEvent event) {
  return (resident ? kResident : kComing)[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

}  // namespace muster::parallel
