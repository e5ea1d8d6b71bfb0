#include "parallel/reduction_record.h"

#include <algorithm>

namespace muster::parallel {
namespace {

bool holds(const std::vector<int64_t>& indices, int64_t index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

}  // namespace

std::shared_ptr<const ReductionRecord::Order>& ReductionRecord::latest_of(int64_t index) {
  const auto i = static_cast<size_t>(index);
  if (latest_.size() <= i) latest_.resize(i + 1);
  return latest_[i];
}

void ReductionRecord::began(int64_t index) {
  const base::Lock lock(mutex_);
  if (open_.empty() || holds(current_->began, index)) {
    current_ = std::make_shared<Order>();
    open_.clear();
  }
  current_->began.push_back(index);
  open_.push_back(index);
  latest_of(index) = current_;
  if (!holds(seen_, index)) seen_.push_back(index);
}

void ReductionRecord::ended(int64_t index) {
  const base::Lock lock(mutex_);
  if (std::erase(open_, index) > 0) current_->ended.push_back(index);
}

std::shared_ptr<const ReductionRecord::Order> ReductionRecord::latest(int64_t index) const {
  const base::Lock lock(mutex_);
  const auto i = static_cast<size_t>(index);
  if (latest_.size() <= i || !latest_[i]) return nullptr;
  return latest_[i]->began.size() == latest_[i]->ended.size() ? latest_[i] : nullptr;
}

void ReductionRecord::repeat(const std::shared_ptr<const Order>& order) {
  const base::Lock lock(mutex_);
  for (const auto index : order->began) {
    latest_of(index) = order;
    if (!holds(seen_, index)) seen_.push_back(index);
  }
}

bool ReductionRecord::seen(int64_t index) const {
  const base::Lock lock(mutex_);
  return holds(seen_, index);
}

void ReductionRecord::consume() {
  const base::Lock lock(mutex_);
  seen_.clear();
}

void ReductionRecord::carry(std::weak_ptr<Piggyback> bits) {
  const base::Lock lock(mutex_);
  bits_ = std::move(bits);
}

std::shared_ptr<Piggyback> ReductionRecord::bits() const {
  const base::Lock lock(mutex_);
  return bits_.lock();
}

unsigned ReductionRecord::send_bits() const {
  const auto own = bits();
  return own ? own->send() : 0;
}

void ReductionRecord::receive_bits(unsigned any) const {
  if (const auto own = bits()) own->receive(any);
}

}  // namespace muster::parallel
