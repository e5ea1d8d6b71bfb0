#include "parallel/reductions.h"

#include <algorithm>

namespace muster::parallel {

Reductions::Reductions(const Units& units, const ShardSettings& settings)
    : units_(units), in_order_(settings.resident()), complete_(units.size()), reduced_(units.size()) {
  for (size_t u = units.size(); u-- > 0;)
    if (units[u]->trainable_count() > 0) order_.push_back(u);
}

void Reductions::begin() {
  std::fill(complete_.begin(), complete_.end(), 0);
  std::fill(reduced_.begin(), reduced_.end(), 0);
  next_ = 0;
}

void Reductions::complete(size_t unit) {
  complete_[unit] = true;
  if (!in_order_) return start(unit);
  for (; next_ < order_.size() && complete_[order_[next_]]; ++next_) start(order_[next_]);
}

void Reductions::reopen(size_t unit) { reduced_[unit] = false; }

void Reductions::start(size_t unit) {
  if (under_way_.size() >= kUnderWay) {
    units_[under_way_.front()]->gradients()->settle();
    under_way_.pop_front();
  }
  std::erase(under_way_, unit);
  units_[unit]->gradients()->start_reduction("the gradients of " + model_ + "unit '" + units_[unit]->name() + "'", step_);
  under_way_.push_back(unit);
  reduced_[unit] = true;
  ++started_;
}

void Reductions::start_rest() {
  for (const auto unit : order_)
    if (!reduced_[unit]) start(unit);
}

void Reductions::settle() {
  for (const auto unit : under_way_) units_[unit]->gradients()->finish_scatter();
  for (const auto unit : under_way_) units_[unit]->gradients()->settle();
  under_way_.clear();
}

void Reductions::cancel() noexcept {
  under_way_.clear();
  for (const auto& unit : units_)
    if (unit->gradients()) unit->gradients()->cancel();
}

}  // namespace muster::parallel
