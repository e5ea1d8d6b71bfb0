#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "base/first_names.h"
#include "base/quantities.h"
#include "parallel/sharded/sharded_state.h"

namespace muster::parallel {
namespace {

constexpr std::array<const char*, 4> kStageTitles{"ddp", "zero1", "zero2", "fsdp"};

/// The two largest of these sizes, and all that are marked.
struct Largest {
  int64_t marked = 0, first = 0, second = 0;
  void add(int64_t size, bool mark) {
    if (mark) marked += size;
    else if (size > first) second = std::exchange(first, size);
    else second = std::max(second, size);
  }
  int64_t sum() const { return marked + first + second; }
};

}  // namespace

ShardedModel::State::Needs ShardedModel::State::needs() const {
  int64_t rest = 0, all = 0;
  Largest whole, gradients;
  for (const auto& unit : units) {
    rest += unit->held_bytes();
    const auto gathered = unit->has_one_copy() ? 0 : unit->full_bytes();
    all += gathered;
    whole.add(gathered, unit->is_root());
    if (unit->trainable_count() > 0 && settings.stage != ShardStage::optimizer)
      gradients.add(unit->padded_elements() * static_cast<int64_t>(c10::elementSize(
                                                  settings.reduce_dtype.value_or(unit->local(0).value.scalar_type()))),
                    unit->is_root());
  }
  const auto live = settings.keeps_after_forward ? all : std::max(std::min(settings.limit_bytes, all), whole.sum());
  const auto kept = settings.post_forward_size > 0 ? all / settings.post_forward_size : 0;
  return {rest, rest + (settings.keeps_params_unsharded() ? 0 : live + kept) + gradients.sum()};
}

std::string ShardedModel::State::describe() const {
  std::scoped_lock lock(mutex);
  const bool twice = !settings.keeps_params_unsharded() && !settings.keeps_after_forward;  // in forward and in backward
  int64_t elements = 0;
  for (const auto& unit : units) elements += unit->elements();
  const auto gathered =
      static_cast<size_t>(std::count_if(units.begin(), units.end(), [](const auto& u) { return !u->has_one_copy(); }));
  const auto reduced =
      std::count_if(units.begin(), units.end(), [](const auto& unit) { return unit->trainable_count() > 0; });
  const bool rooted = std::any_of(units.begin(), units.end(),
                                  [](const auto& unit) { return unit->is_root() && !unit->has_one_copy(); });
  const auto [rest, peak] = needs();
  std::ostringstream text;
  text << kStageTitles[static_cast<size_t>(settings.stage)] << ": "
       << counted(static_cast<size_t>(groups.size()), "rank");
  if (groups.replicas.size() > 1)
    text << " (" << groups.replicas.size() << " replicas of " << groups.shards.size() << " shards)";
  text << ", " << counted(units.size(), "unit") << " ("
       << first_names(units, [](const auto& unit) { return unit->name(); }) << "), " << elements
       << " parameters; each rank holds " << size_text(rest) << " of values and gradients at rest and "
       << size_text(peak) << " at peak; ";
  if (gathered < units.size())
    text << "the " << groups.shards.size() << " ranks of a host have one copy of the values of "
         << counted(units.size() - gathered, "unit") << " in common; ";
  const char* why =
      one_copy ? "memory for a common one was refused" : "the ranks of the shards do not all share memory";
  if (settings.one_copy_per_host && gathered > 0 && groups.shards.size() > 1)
    text << "each rank gathers its own copy, since " << why << "; ";
  text << "a step takes " << gathered * (twice ? 2 : 1) << " gathers";
  if (twice && rooted) text << " (the root's one less)";
  if (settings.post_forward_size > 0 && gathered > 0)
    text << ", in backward over " << settings.post_forward_size << " neighbours,";
  text << " and " << reduced << " reductions";
  return text.str();
}

ShardedModel::Stats ShardedModel::State::stats() const {
  std::scoped_lock lock(mutex);
  Stats stats;
  stats.gathered_bytes = unshard_scheduler_->live_bytes();
  stats.peak_gathered_bytes = unshard_scheduler_->peak_bytes();
  stats.gathers = unshard_scheduler_->gathers();
  stats.reductions = reductions_->started();
  for (const auto& unit : units) {
    stats.held_bytes += unit->held_bytes();
    if (const auto* gradients = unit->gradients()) stats.gradient_bytes += gradients->held_bytes();
  }
  stats.held_bytes += buffers.shared_bytes();
  stats.temporary_bytes = buffers.bytes();
  stats.peak_temporary_bytes = buffers.peak_bytes();
  return stats;
}

}  // namespace muster::parallel
