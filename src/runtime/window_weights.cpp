#include "runtime/window_weights.h"

#include "comm/agreement.h"

namespace muster::runtime {
namespace {

double summed(const comm::Communicator& group, double mine) {
  comm::CoalescedAllReduce scalars(group, "gradient accumulation");
  scalars.add(mine, comm::ReduceOp::sum);
  scalars.run();
  return scalars.result(0);
}

double known_full_window(const MicroBatch& batch, int num_steps) {
  // Batches of varying size have no full step; any number that all ranks know will do.
  return static_cast<double>(batch.full > 0 ? batch.full : batch.total) * num_steps;
}

}  // namespace

void WindowWeights::begin_window() noexcept {
  local_ = known_ = full_ = 0;
  known_by_all_ = true;
  weighted_ = false;
}

void WindowWeights::begin(const MicroBatch& batch) noexcept {
  count_ = static_cast<double>(batch.local);
  if (batch.total == 0) known_by_all_ = false;
  correction_ = 1;
}

void WindowWeights::weigh(double count) noexcept {
  count_ = count;
  known_by_all_ = false;
}

void WindowWeights::add_up(const MicroBatch& batch, int num_steps) noexcept {
  local_ += count_;
  known_ += static_cast<double>(batch.total + batch.samples_left);
  if (full_ == 0 && known_by_all_)
    full_ = known_full_window(batch, num_steps);  // also used by ranks whose first loss of the window comes later
}

void WindowWeights::choose_full(const MicroBatch& batch, int num_steps, const comm::Communicator& group) {
  if (full_ != 0) return;
  if (known_by_all_) {
    full_ = known_full_window(batch, num_steps);
    return;
  }
  if (agreed_ == 0) agreed_ = summed(group, count_) * num_steps;
  full_ = agreed_ > 0 ? agreed_ : 1;
}

double WindowWeights::correct(const comm::Communicator& group) {
  const double actual = known_by_all_ ? known_ : summed(group, local_);
  if (!known_by_all_ && actual > 0) agreed_ = actual;
  correction_ = actual > 0 ? full_ / actual : 1;
  return weighted_ ? correction_ : 1;
}

double WindowWeights::factor(int ranks) noexcept {
  weighted_ = true;
  return count_ * ranks / full_ * correction_;
}

State WindowWeights::state_dict() const {
  return State::Map{
      {"own", local_}, {"known", known_}, {"full", full_}, {"agreed", agreed_}, {"known_by_all", known_by_all_}};
}

void WindowWeights::load_state_dict(const State& state) {
  const bool open = state.at("open").boolean(), known_by_all = state.at("known_by_all").boolean();
  const double own = state.at("own").number(), known = state.at("known").number(), full = state.at("full").number(),
               agreed = state.at("agreed").number();
  local_ = own;
  known_ = known;
  full_ = full;
  agreed_ = agreed;
  known_by_all_ = known_by_all;
  weighted_ = open;
}

}  // namespace muster::runtime
