#include "training_pass.h"

#include <algorithm>
#include <functional>
#include <ranges>

namespace muster::trainer {
namespace {

bool all_true(const std::vector<bool>& flags) { return std::ranges::all_of(flags, std::identity()); }

}  // namespace

std::optional<int64_t> batches_in(const PreparedLoaders& prepared) {
  std::vector<int64_t> sizes;
  for (const auto& loader : prepared.loaders)
    if (const auto size = loader->known_size()) sizes.push_back(*size);
  if (sizes.size() < prepared.loaders.size()) return std::nullopt;
  switch (prepared.combined.mode) {
    case LoaderMode::min_size: return std::ranges::min(sizes);
    case LoaderMode::max_size: return std::ranges::max(sizes);
    case LoaderMode::max_size_cycle: {
      const auto [least, most] = std::ranges::minmax(sizes);
      return least == 0 ? 0 : most;  // a loader without batches cannot be cycled
    }
    case LoaderMode::sequential: break;
  }
  int64_t sum = 0;
  for (const auto size : sizes) sum += size;
  return sum;
}

TrainingPass::TrainingPass(PreparedLoaders& prepared, int64_t epoch, int64_t done)
    : prepared_(prepared), passes_(prepared.loaders.size()), length_(batches_in(prepared)), returned_(done) {
  for (const auto& loader : prepared.loaders)
    ended_.push_back(done > 0 && passes_.size() > 1 && loader->epoch() > epoch);
}

data::BatchBox* TrainingPass::next_of(std::size_t i) {
  if (!passes_[i]) passes_[i] = prepared_.loaders[i]->begin_pass();
  auto* box = passes_[i]->next();
  if (!box) {
    ended_[i] = true;
    passes_[i].reset();
  }
  return box;
}

void* TrainingPass::next() {
  auto* batch = prepared_.combined.mode == LoaderMode::sequential ? next_in_sequence() : next_side_by_side();
  if (batch) ++returned_;
  return batch;
}

void* TrainingPass::next_in_sequence() {
  for (; current_ < passes_.size(); ++current_)
    if (!ended_[current_])
      if (auto* box = next_of(current_)) return prepared_.combined.parts[current_].batch_in(*box);
  return nullptr;
}

void* TrainingPass::next_side_by_side() {
  if (length_ && returned_ >= *length_) return nullptr;
  const auto mode = prepared_.combined.mode;
  if (mode == LoaderMode::min_size && std::ranges::any_of(ended_, std::identity())) return nullptr;  // after a resume
  std::vector<void*> batches;
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    const bool ends_for_good = mode == LoaderMode::max_size;
    auto* box = ends_for_good && ended_[i] ? nullptr : next_of(i);
    if (!box && mode == LoaderMode::min_size) return nullptr;
    if (!box && mode == LoaderMode::max_size_cycle) {
      if (all_true(ended_)) return nullptr;
      box = next_of(i);  // a shorter loader starts over with its next epoch
      if (!box) return nullptr;
    }
    batches.push_back(box ? prepared_.combined.parts[i].batch_in(*box) : nullptr);
  }
  if (mode == LoaderMode::max_size && all_true(ended_)) return nullptr;
  return prepared_.combined.joined(batches);
}

bool TrainingPass::at_end() const {
  if (length_ && passes_.size() > 1) return returned_ >= *length_;
  const auto at_last = [&](std::size_t i) { return prepared_.loaders[i]->end_of_dataloader(); };
  const auto all = std::views::iota(std::size_t{0}, passes_.size());
  switch (prepared_.combined.mode) {
    case LoaderMode::sequential: return current_ + 1 == passes_.size() && at_last(current_);
    case LoaderMode::min_size: return std::ranges::any_of(all, at_last);
    case LoaderMode::max_size:
    case LoaderMode::max_size_cycle: break;
  }
  return std::ranges::all_of(all, [&](std::size_t i) { return ended_[i] || at_last(i); });
}

const StepTable& TrainingPass::steps() const {
  return prepared_.combined.joint_steps ? *prepared_.combined.joint_steps : *prepared_.combined.parts[current_].steps;
}

int64_t TrainingPass::loader() const { return static_cast<int64_t>(current_); }

}  // namespace muster::trainer
