#include "parallel/sharded/reduction_scheduler.h"

#include <ATen/ops/empty.h>

#include "parallel/sharded/unit_gradients.h"

namespace muster::parallel {

void FlagExchange::label(const std::string& model) {
  label_ = {.text = std::string("which ") + comm::kGradientsLabel + model + "units there are",
            .source = comm::Source::library};
}

void FlagExchange::add(size_t unit) { unsent_ = unsent_ || units_[unit]->gradients()->flags_are_apart(); }

void FlagExchange::start(const std::vector<size_t>& units, int64_t step) {
  if (!std::exchange(unsent_, false)) return;
  std::vector<float> all;
  for (const auto unit : units) {
    const auto& flags = units_[unit]->gradients()->sent_flags();
    all.insert(all.end(), flags.begin(), flags.end());
  }
  flags_ = at::empty({static_cast<int64_t>(all.size())}, at::kFloat);
  std::copy(all.begin(), all.end(), flags_.mutable_data_ptr<float>());
  label_.gradient_step = step;
  work_ = groups_.shards.with_label(label_).start_all_reduce(flags_);
}

void FlagExchange::finish(const std::vector<size_t>& units) {
  if (!flags_.defined()) return;
  std::exchange(work_, comm::Work()).wait();
  if (groups_.replicas.size() > 1) groups_.replicas.with_label(label_).all_reduce(flags_);
  const auto received = std::exchange(flags_, at::Tensor());
  const auto* sums = received.const_data_ptr<float>();
  for (const auto unit : units) {
    units_[unit]->gradients()->receive_flags(sums);
    sums += units_[unit]->gradients()->sent_flags().size();
  }
}

void FlagExchange::cancel() noexcept {
  unsent_ = false;
  flags_.reset();
  work_ = {};
}

ReductionScheduler::ReductionScheduler(const Units& units, const ShardGroups& groups, const ShardSettings& settings,
                                       std::function<void(size_t unit)> before_start)
    : units_(units), before_start_(std::move(before_start)), in_order_(settings.keeps_params_unsharded()),
      complete_(units.size()), reduced_(units.size()), expects_no_gradient_(units.size()), labels_(units.size()),
      flags_(units, groups) {
  set_order();
  label("");
}

void ReductionScheduler::set_order() {
  order_.clear();
  for (size_t u = units_.size(); u-- > 0;)
    if (units_[u]->trainable_count() > 0) order_.push_back(u);
}

bool ReductionScheduler::any_freezing_change() {
  bool heard = false;
  for (const auto& unit : units_) heard = (unit->gradients() && unit->gradients()->take_freezing_change()) || heard;
  return heard;
}

void ReductionScheduler::add_units(const std::vector<size_t>& units) {
  freezing_change_ = false;
  set_order();
  label(model_);
  for (const auto unit : units) send(unit);
}

void ReductionScheduler::label(const std::string& model) {
  model_ = model;
  for (const auto u : order_)
    labels_[u] = {.text = std::string("the ") + comm::kGradientsLabel + model + "unit '" + units_[u]->name() + "'",
                  .source = comm::Source::library};
  flags_.label(model);
}

void ReductionScheduler::register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) {
  recorder_.register_with(record, index);
  label("model " + std::to_string(index) + ", ");
}

void ReductionScheduler::begin(const std::vector<size_t>& awaited, bool freezing_change) {
  std::transform(awaited.begin(), awaited.end(), complete_.begin(), [](size_t gradients) { return gradients == 0; });
  // If the model is frozen as a whole, as one model of a GAN is in the other one's step, nothing is reduced.
  const bool trains = std::find(complete_.begin(), complete_.end(), 0) != complete_.end();
  for (size_t u = 0; u < expects_no_gradient_.size(); ++u) expects_no_gradient_[u] = trains && complete_[u];
  freezing_change_ = freezing_change;
  std::fill(reduced_.begin(), reduced_.end(), 0);
  next_ = 0;
  record_end();
}

void ReductionScheduler::start_alone() {
  alone_ = true;
  start_rest();
}

void ReductionScheduler::start_alone(size_t unit) {
  alone_ = true;
  send(unit);
}

void ReductionScheduler::record_end() {
  alone_ = false;
  recorder_.end();
}

void ReductionScheduler::complete(size_t unit) {
  complete_[unit] = true;
  if (!in_order_) {
    on_backward_reached(unit);
    return start(unit);
  }
  for (; next_ < order_.size() && complete_[order_[next_]]; ++next_) start(order_[next_]);
}

void ReductionScheduler::on_backward_reached(size_t unit) {
  if (in_order_) return;
  for (const auto u : order_) {
    if (u <= unit) return;
    if (expects_no_gradient_[u] && !reduced_[u]) start(u);
  }
}

void ReductionScheduler::reopen(size_t unit) { reduced_[unit] = false; }

void ReductionScheduler::start(size_t unit) {
  before_start_(unit);
  send(unit);
}

void ReductionScheduler::send(size_t unit) {
  if (in_flight_.size() >= kMaxInFlight) {
    units_[in_flight_.front()]->gradients()->wait();
    in_flight_.pop_front();
  }
  std::erase(in_flight_, unit);
  if (!alone_) recorder_.begin();
  labels_[unit].gradient_step = recorder_.step();
  labels_[unit].history_hash = units_[unit]->values().history_hash();
  units_[unit]->gradients()->start_reduction(labels_[unit], freezing_change_);
  in_flight_.push_back(unit);
  flags_.add(unit);
  reduced_[unit] = true;
  ++started_;
}

void ReductionScheduler::start_rest() {
  for (const auto unit : order_)
    if (!reduced_[unit]) start(unit);
}

void ReductionScheduler::wait() {
  flags_.start(order_, recorder_.step());
  for (const auto unit : in_flight_) units_[unit]->gradients()->finish_scatter();
  for (const auto unit : in_flight_) units_[unit]->gradients()->wait();
  in_flight_.clear();
  flags_.finish(order_);
}

void ReductionScheduler::cancel() noexcept {
  record_end();
  in_flight_.clear();
  flags_.cancel();
  for (const auto& unit : units_)
    if (unit->gradients()) unit->gradients()->cancel();
}

}  // namespace muster::parallel
