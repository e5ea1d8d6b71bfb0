#include "parallel/sharded/execution_order.h"

#include <algorithm>
#include <utility>

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

}  // namespace muster::parallel
