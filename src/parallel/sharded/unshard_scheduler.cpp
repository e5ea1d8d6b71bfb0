#include "parallel/sharded/unshard_scheduler.h"

#include <limits>

#include <c10/util/ScopeExit.h>

namespace muster::parallel {

void ExecutionOrder::begin() {
  now_.clear();
  at_ = 0;
  lost_ = false;
}

void ExecutionOrder::came_to(size_t unit) {
  now_.push_back(unit);
  const auto from = last_.begin() + static_cast<std::ptrdiff_t>(at_);
  auto found = std::find(from, last_.end(), unit);
  lost_ = found == last_.end();
  if (lost_) {
    found = std::find(last_.begin(), from, unit);
    lost_ = found == from;
  }
  if (!lost_) at_ = static_cast<size_t>(found - last_.begin()) + 1;
}

std::optional<size_t> ExecutionOrder::coming(size_t ahead) const {
  if (lost_ || at_ + ahead >= last_.size()) return {};
  return last_[at_ + ahead];
}

void ExecutionOrder::end() {
  if (!now_.empty()) last_ = std::move(now_);
  now_.clear();
  at_ = 0;
}
namespace {

constexpr size_t kNoUnit = std::numeric_limits<size_t>::max();
constexpr size_t kFarthest = 64;  // number of places of the order to look ahead

}  // namespace

UnshardScheduler::UnshardScheduler(const Units& units, const ShardSettings& settings,
                                   std::function<void(size_t unit)> before_gather)
    : units_(units), settings_(settings), before_gather_(std::move(before_gather)), in_use_(units.size()),
      replayed_by_(units.size()), latest_(kNoUnit) {
  recount();
}

void UnshardScheduler::recount() {
  live_ = 0;
  for (const auto& unit : units_) live_ += unit->values().live_bytes();
  peak_ = std::max(peak_, live_);
}

void UnshardScheduler::handle(size_t unit, UnitEvent event) {
  auto& values = units_[unit]->values();
  if (!values.stays_unsharded() && transition(/*stays_unsharded=*/false, values.state(), event).start)
    before_gather_(unit);
  const auto count = c10::make_scope_exit([&, before = values.live_bytes()] {
    live_ += values.live_bytes() - before;
    peak_ = std::max(peak_, live_);
  });
  gathers_ += values.handle(event);
}

void UnshardScheduler::begin(Pass pass, bool prefetches) {
  latest_ = kNoUnit;
  replay_ = 0;
  auto& order = orders_[static_cast<size_t>(pass)];
  order.begin();
  if (!prefetches || settings_.keeps_params_unsharded()) return;
  for (const auto u : coming_units(order, kNoUnit)) handle(u, UnitEvent::prefetch);
}

void UnshardScheduler::use(size_t unit, Pass pass, bool keeps, int64_t replay) {
  if (replay > 0) replayed_by_[unit] = replay_ = replay;
  const bool moved = unit != latest_ && !units_[unit]->values().stays_unsharded();
  if (moved) {
    latest_ = unit;
    auto& order = orders_[static_cast<size_t>(pass)];
    order.came_to(unit);
    const auto coming = coming_units(order, unit);
    make_room(unit, coming, keeps);
    handle(unit, UnitEvent::prefetch);
    for (const auto u : coming) handle(u, UnitEvent::prefetch);
  }
  if (units_[unit]->values().state() != UnitState::unsharded) handle(unit, UnitEvent::access);
  hold(unit);
}

void UnshardScheduler::hold(size_t unit) {
  units_[unit]->values().use_on_current_stream();
  ++in_use_[unit];
}

/// The units to have unsharded next to the current one: as many as the limit allows, or one without a limit.
std::vector<size_t> UnshardScheduler::coming_units(const ExecutionOrder& order, size_t current) const {
  std::vector<size_t> coming;
  const auto stays = [&](size_t u) {
    const auto& unit = *units_[u];
    return unit.values().state() == UnitState::unsharded &&
           (unit.is_root() || (current != kNoUnit && unit.covers(*units_[current])));
  };
  int64_t bytes = current == kNoUnit ? 0 : units_[current]->values().full_bytes();
  for (size_t u = 0; u < units_.size(); ++u)
    if (u != current && stays(u)) bytes += units_[u]->values().full_bytes();
  for (size_t ahead = 0; ahead < kFarthest; ++ahead) {
    const auto next = order.coming(ahead);
    if (!next) break;
    if (*next == current || stays(*next) || std::find(coming.begin(), coming.end(), *next) != coming.end()) continue;
    bytes += units_[*next]->values().full_bytes();
    if (settings_.limit_bytes > 0 ? bytes > settings_.limit_bytes : !coming.empty()) break;
    coming.push_back(*next);
  }
  return coming;
}

void UnshardScheduler::make_room(size_t current, const std::vector<size_t>& coming, bool keeps) {
  for (size_t u = 0; u < units_.size(); ++u) {
    const bool whole = units_[u]->values().state() == UnitState::unsharded;
    if (u == current || in_use_[u] > 0 || std::find(coming.begin(), coming.end(), u) != coming.end()) continue;
    const bool awaits_backward = replay_ > 0 && replayed_by_[u] == replay_;
    if (whole && (keeps || awaits_backward || units_[u]->covers(*units_[current]))) continue;
    handle(u, UnitEvent::reshard);
  }
}

void UnshardScheduler::reshard(size_t unit) {
  if (in_use_[unit] > 0) return;
  handle(unit, UnitEvent::reshard);
  if (unit == latest_) latest_ = kNoUnit;
}

void UnshardScheduler::reshard_all(bool keep_roots) {
  for (size_t u = 0; u < units_.size(); ++u)
    if (!(keep_roots && units_[u]->is_root() && units_[u]->values().state() == UnitState::unsharded)) reshard(u);
}

/// What the other ranks kept after a forward, this rank keeps after every gather: it does not know which pass they are
/// in.
void UnshardScheduler::follow_gather(size_t unit, bool from_post_forward) {
  auto& values = units_[unit]->values();
  handle(unit, UnitEvent::reshard);
  if (!from_post_forward) values.free_post_forward_shard();
  values.keep_post_forward_shard(true);
  handle(unit, UnitEvent::access);
  values.use_on_current_stream();
  handle(unit, UnitEvent::reshard);
}

void UnshardScheduler::forget_passes() {
  reshard_all(/*keep_roots=*/false);
  orders_ = {};
}

void UnshardScheduler::update(size_t unit) { handle(unit, UnitEvent::update); }

void UnshardScheduler::wait(size_t unit) {
  if (units_[unit]->values().state() != UnitState::unsharding) return;
  handle(unit, UnitEvent::access);
  units_[unit]->values().use_on_current_stream();
}

}  // namespace muster::parallel
