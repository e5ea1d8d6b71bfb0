#include "parallel/reduction_record.h"

#include <algorithm>

namespace muster::parallel {

void ReductionRecord::began(int64_t index) {
  const base::Lock lock(mutex_);
  if (open_.empty() || std::ranges::find(current_->began, index) != current_->began.end()) {
    current_ = std::make_shared<Order>();
    open_.clear();
  }
  current_->began.push_back(index);
  open_.insert(index);
  latest_[index] = current_;
  seen_.insert(index);
}

void ReductionRecord::ended(int64_t index) {
  const base::Lock lock(mutex_);
  if (open_.erase(index) > 0) current_->ended.push_back(index);
}

std::shared_ptr<const ReductionRecord::Order> ReductionRecord::latest(int64_t index) const {
  const base::Lock lock(mutex_);
  const auto found = latest_.find(index);
  if (found == latest_.end() || found->second->began.size() != found->second->ended.size()) return nullptr;
  return found->second;
}

void ReductionRecord::repeat(const std::shared_ptr<const Order>& order) {
  const base::Lock lock(mutex_);
  for (const auto index : order->began) {
    latest_[index] = order;
    seen_.insert(index);
  }
}

bool ReductionRecord::seen(int64_t index) const {
  const base::Lock lock(mutex_);
  return seen_.contains(index);
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
