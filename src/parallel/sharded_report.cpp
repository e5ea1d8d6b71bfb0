#include "parallel/sharded_state.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace muster::parallel {
namespace {

constexpr std::array<const char*, 4> kStageTitles{"ddp", "zero1", "zero2", "fsdp"};

/// The two largest of these sizes, and all that are marked.
struct Largest {
  int64_t marked = 0, first = 0, second = 0;
  void add(int64_t size, bool mark) {
    if (mark)
      marked += size;
    else if (size > first)
      second = std::exchange(first, size);
    else
      second = std::max(second, size);
  }
  int64_t sum() const { return marked + first + second; }
};

const char* plural(size_t count) { return count == 1 ? "" : "s"; }

}  // namespace

std::string ShardedModel::State::describe() const {
  std::scoped_lock lock(mutex);
  const bool coming = !settings.resident();
  size_t reduced = 0;
  int64_t elements = 0, rest = 0, all = 0;
  Largest whole, gradients;
  for (const auto& unit : units) {
    elements += unit->elements();
    rest += unit->held_bytes();
    all += unit->whole_bytes();
    reduced += unit->trainable_count() > 0;
    whole.add(unit->whole_bytes(), unit->is_root());
    if (unit->trainable_count() > 0 && settings.stage != ShardStage::optimizer)
      gradients.add(unit->whole_bytes() / static_cast<int64_t>(c10::elementSize(unit->piece(0).value.scalar_type())) *
                        static_cast<int64_t>(c10::elementSize(settings.reduce_dtype.value_or(unit->piece(0).value.scalar_type()))),
                    unit->is_root());
  }
  const auto live = settings.keeps_after_forward ? all : std::max(std::min(settings.limit_bytes, all), whole.sum());
  const auto kept = settings.kept_over > 0 ? all / settings.kept_over : 0;
  std::ostringstream text;
  text << kStageTitles[static_cast<size_t>(settings.stage)] << ": " << groups.size() << " rank" << plural(static_cast<size_t>(groups.size()));
  if (groups.replicas.size() > 1) text << " (" << groups.replicas.size() << " replicas of " << groups.shards.size() << " shards)";
  text << ", " << units.size() << " unit" << plural(units.size()) << " (";
  for (size_t u = 0; u < units.size(); ++u) text << (u ? ", " : "") << units[u]->name();
  text << "), " << elements << " parameters; each rank holds " << rest << " bytes of values and gradients at rest and " << rest + (coming ? live + kept : 0) + gradients.sum()
       << " at peak; a step takes " << units.size() * (coming && !settings.keeps_after_forward ? 2 : 1) << " gathers";
  if (coming && !settings.keeps_after_forward) text << " (the root's one less)";
  if (settings.kept_over > 0) text << ", in backward over " << settings.kept_over << " neighbours,";
  text << " and " << reduced << " reductions";
  return text.str();
}

ShardedModel::Figures ShardedModel::State::figures() const {
  std::scoped_lock lock(mutex);
  Figures figures;
  figures.gathered_bytes = residency_->live_bytes();
  figures.peak_gathered_bytes = residency_->peak_bytes();
  figures.gathers = residency_->gathers();
  figures.reductions = reductions_->started();
  for (const auto& unit : units) figures.held_bytes += unit->held_bytes();
  figures.lent_bytes = buffers.bytes();
  figures.peak_lent_bytes = buffers.peak_bytes();
  return figures;
}

}  // namespace muster::parallel
