#include "parallel/sharded/reductions.h"

#include <algorithm>
#include <string>
#include <utility>

namespace muster::parallel {

Reductions::Reductions(const Units& units, const ShardSettings& settings)
    : units_(units), in_order_(settings.resident()), complete_(units.size()), reduced_(units.size()),
      tags_(units.size()) {
  for (size_t u = units.size(); u-- > 0;)
    if (units[u]->trainable_count() > 0) order_.push_back(u);
  label("");
}

void Reductions::label(const std::string& model) {
  for (const auto u : order_)
    tags_[u] = {.label = "the gradients of " + model + "unit '" + units_[u]->name() + "'",
                .source = comm::Source::library};
}

void Reductions::join_job(const std::shared_ptr<JobRounds>& job, int64_t place) {
  record_.join(job, place);
  label("model " + std::to_string(place) + ", ");
}

void Reductions::begin() {
  std::fill(complete_.begin(), complete_.end(), 0);
  std::fill(reduced_.begin(), reduced_.end(), 0);
  next_ = 0;
  record_end();
  unrecorded_ = false;
}

void Reductions::start_unrecorded() {
  unrecorded_ = true;
  start_rest();
}

void Reductions::complete(size_t unit) {
  complete_[unit] = true;
  if (!in_order_) return start(unit);
  for (; next_ < order_.size() && complete_[order_[next_]]; ++next_) start(order_[next_]);
}

void Reductions::reopen(size_t unit) { reduced_[unit] = false; }

void Reductions::start(size_t unit) {
  if (under_way_.size() >= kUnderWay) {
    units_[under_way_.front()]->gradients()->wait();
    under_way_.pop_front();
  }
  std::erase(under_way_, unit);
  if (!unrecorded_) record_.begin();
  tags_[unit].gradient_step = record_.step();
  units_[unit]->gradients()->start_reduction(tags_[unit]);
  under_way_.push_back(unit);
  reduced_[unit] = true;
  ++started_;
}

void Reductions::start_rest() {
  for (const auto unit : order_)
    if (!reduced_[unit]) start(unit);
}

void Reductions::wait() {
  for (const auto unit : under_way_) units_[unit]->gradients()->finish_scatter();
  for (const auto unit : under_way_) units_[unit]->gradients()->wait();
  under_way_.clear();
}

void Reductions::cancel() noexcept {
  record_end();
  under_way_.clear();
  for (const auto& unit : units_)
    if (unit->gradients()) unit->gradients()->cancel();
}

}  // namespace muster::parallel
