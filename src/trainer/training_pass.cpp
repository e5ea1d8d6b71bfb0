#include "training_pass.h"

#include <algorithm>
#include <functional>
#include <ranges>

namespace muster::trainer {
namespace {

bool all_true(const std::vector<bool>& flags) { return std::ranges::all_of(flags, std::identity()); }

}  // namespace

std::optional<int64_t> batches_in(const PreparedFeed& feed) {
  std::vector<int64_t> sizes;
  for (const auto& loader : feed.loaders)
    if (const auto size = loader->known_size()) sizes.push_back(*size);
  if (sizes.size() < feed.loaders.size()) return std::nullopt;
  switch (feed.feed.mode) {
    case FeedMode::min_size: return std::ranges::min(sizes);
    case FeedMode::max_size: return std::ranges::max(sizes);
    case FeedMode::max_size_cycle: {
      const auto [least, most] = std::ranges::minmax(sizes);
      return least == 0 ? 0 : most;  // a loader without batches cannot be cycled
    }
    case FeedMode::sequential: break;
  }
  int64_t sum = 0;
  for (const auto size : sizes) sum += size;
  return sum;
}

TrainingPass::TrainingPass(PreparedFeed& feed, int64_t epoch, int64_t done)
    : feed_(feed), passes_(feed.loaders.size()), length_(batches_in(feed)), returned_(done) {
  for (const auto& loader : feed.loaders) ended_.push_back(done > 0 && passes_.size() > 1 && loader->epoch() > epoch);
}

data::BatchBox* TrainingPass::next_of(std::size_t i) {
  if (!passes_[i]) passes_[i] = feed_.loaders[i]->begin_pass();
  auto* box = passes_[i]->next();
  if (!box) {
    ended_[i] = true;
    passes_[i].reset();
  }
  return box;
}

void* TrainingPass::next() {
  auto* batch = feed_.feed.mode == FeedMode::sequential ? next_in_sequence() : next_side_by_side();
  if (batch) ++returned_;
  return batch;
}

void* TrainingPass::next_in_sequence() {
  for (; current_ < passes_.size(); ++current_)
    if (!ended_[current_])
      if (auto* box = next_of(current_)) return feed_.feed.parts[current_].batch_in(*box);
  return nullptr;
}

void* TrainingPass::next_side_by_side() {
  if (length_ && returned_ >= *length_) return nullptr;
  const auto mode = feed_.feed.mode;
  if (mode == FeedMode::min_size && std::ranges::any_of(ended_, std::identity())) return nullptr;  // before resuming
  std::vector<void*> batches;
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    const bool ends_for_good = mode == FeedMode::max_size;
    auto* box = ends_for_good && ended_[i] ? nullptr : next_of(i);
    if (!box && mode == FeedMode::min_size) return nullptr;
    if (!box && mode == FeedMode::max_size_cycle) {
      if (all_true(ended_)) return nullptr;
      box = next_of(i);  // a shorter loader restarts, in its next epoch
      if (!box) return nullptr;
    }
    batches.push_back(box ? feed_.feed.parts[i].batch_in(*box) : nullptr);
  }
  if (mode == FeedMode::max_size && all_true(ended_)) return nullptr;
  return feed_.feed.joined(batches);
}

bool TrainingPass::at_end() const {
  if (length_ && passes_.size() > 1) return returned_ >= *length_;
  const auto at_last = [&](std::size_t i) { return feed_.loaders[i]->end_of_dataloader(); };
  const auto all = std::views::iota(std::size_t{0}, passes_.size());
  switch (feed_.feed.mode) {
    case FeedMode::sequential: return current_ + 1 == passes_.size() && at_last(current_);
    case FeedMode::min_size: return std::ranges::any_of(all, at_last);
    case FeedMode::max_size:
    case FeedMode::max_size_cycle: break;
  }
  return std::ranges::all_of(all, [&](std::size_t i) { return ended_[i] || at_last(i); });
}

const StepTable& TrainingPass::steps() const {
  return feed_.feed.joint_steps ? *feed_.feed.joint_steps : *feed_.feed.parts[current_].steps;
}

int64_t TrainingPass::loader() const { return static_cast<int64_t>(current_); }

}  // namespace muster::trainer
