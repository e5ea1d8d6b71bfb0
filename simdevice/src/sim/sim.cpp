#include "muster/sim/sim.h"

#include "muster/base/format.h"
#include "sim/machine.h"
#include "sim/race.h"

namespace muster::sim {
namespace {

Race::Access access(const Use& use, bool writes) {
  return {use.origin->what, use.origin->site.text(), Machine::get().stream_name(use.stream), writes};
}

std::string text_of(const Race::Access& access) {
  return formatted("{} ({}) {} them on {}", access.what, access.site, access.writes ? "writes" : "reads",
                   access.stream);
}

}  // namespace

Race described(const FoundRace& race) {
  return {access(race.first, race.first_writes), access(race.second, race.second_writes)};
}

std::string Race::text() const {
  return formatted(
      "two accesses of the same bytes have no order: {}; after that {}. Let the second wait for an event of "
      "the first's stream",
      text_of(first), text_of(second));
}

int64_t Stats::all_host_waits() const {
  int64_t sum = 0;
  for (const auto& [cause, count] : host_waits) sum += count;
  return sum;
}

void set_seed(uint64_t seed) { Machine::get().seed(seed); }

Stats stats() {
  const auto lock = Machine::get().lock();
  return Machine::get().stats;
}

void reset_stats() {
  const auto lock = Machine::get().lock();
  Machine::get().stats = {};
}

void set_on_race(OnRace on_race) {
  const auto lock = Machine::get().lock();
  Machine::get().on_race = on_race;
  Machine::get().order.is_on = on_race != OnRace::ignore;
}

std::vector<Race> take_races() {
  std::vector<Race> races;
  for (const auto& race : Machine::get().take_races()) races.push_back(described(race));
  return races;
}

}  // namespace muster::sim
