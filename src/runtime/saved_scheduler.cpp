#include "runtime/saved_scheduler.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/error.h"

namespace muster::runtime {
namespace {

/// Gives access to the count, which LibTorch's schedulers expose only to derived classes; the rates are the
/// optimizer's.
struct SchedulerCount : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) { return scheduler.*(&SchedulerCount::step_count_); }
};

[[noreturn]] void refuse_sealed() {
  throw CheckpointError(
      "MU241",
      "torch::optim::ReduceLROnPlateauScheduler keeps its state to itself, so it can be neither saved nor "
      "resumed: use muster::ReduceLROnPlateau, which has the same rule");
}

State as_state(const SchedulerState& saved) {
  State::Map map;
  for (const auto& [name, numbers] : saved) map.emplace_back(name, State::List(numbers.begin(), numbers.end()));
  return map;
}

SchedulerState from_state(const State& state) {
  SchedulerState saved;
  for (const auto& [name, numbers] : state.map())
    for (auto& list = saved[name]; const auto& number : numbers.list()) list.push_back(number.number());
  return saved;
}

}  // namespace

State SavedScheduler::state_dict() const {
  if (const auto* ours = std::get_if<std::shared_ptr<muster::LRScheduler>>(&scheduler_))
    return as_state((*ours)->state_dict());
  if (const auto* theirs = std::get_if<std::shared_ptr<torch::optim::LRScheduler>>(&scheduler_))
    return State::Map{{"step_count", SchedulerCount::of(**theirs)}};
  refuse_sealed();
}

void SavedScheduler::load_state_dict(const State& state) const {
  if (const auto* ours = std::get_if<std::shared_ptr<muster::LRScheduler>>(&scheduler_))
    return (*ours)->load_state_dict(from_state(state));
  if (const auto* theirs = std::get_if<std::shared_ptr<torch::optim::LRScheduler>>(&scheduler_)) {
    SchedulerCount::of(**theirs) = state.at("step_count").as<unsigned>();
    return;
  }
  refuse_sealed();
}

}  // namespace muster::runtime
