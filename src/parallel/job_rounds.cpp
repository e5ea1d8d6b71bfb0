#include "muster/parallel/detail/job_rounds.h"

#include <algorithm>

namespace muster::parallel {
namespace {

bool holds(const std::vector<int64_t>& places, int64_t place) {
  return std::find(places.begin(), places.end(), place) != places.end();
}

}  // namespace

std::shared_ptr<const JobRounds::Order>& JobRounds::latest_of(int64_t place) {
  const auto index = static_cast<size_t>(place);
  if (latest_.size() <= index) latest_.resize(index + 1);
  return latest_[index];
}

void JobRounds::began(int64_t place) {
  const std::lock_guard lock(mutex_);
  if (open_.empty() || holds(current_->began, place)) {
    current_ = std::make_shared<Order>();
    open_.clear();
  }
  current_->began.push_back(place);
  open_.push_back(place);
  latest_of(place) = current_;
  if (!holds(seen_, place)) seen_.push_back(place);
}

void JobRounds::ended(int64_t place) {
  const std::lock_guard lock(mutex_);
  if (std::erase(open_, place) > 0) current_->ended.push_back(place);
}

std::shared_ptr<const JobRounds::Order> JobRounds::latest(int64_t place) const {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(place);
  if (latest_.size() <= index || !latest_[index]) return nullptr;
  return latest_[index]->began.size() == latest_[index]->ended.size() ? latest_[index] : nullptr;
}

void JobRounds::repeat(const std::shared_ptr<const Order>& order) {
  const std::lock_guard lock(mutex_);
  for (const auto place : order->began) {
    latest_of(place) = order;
    if (!holds(seen_, place)) seen_.push_back(place);
  }
}

bool JobRounds::seen(int64_t place) const {
  const std::lock_guard lock(mutex_);
  return holds(seen_, place);
}

void JobRounds::use_up() {
  const std::lock_guard lock(mutex_);
  seen_.clear();
}

}  // namespace muster::parallel
