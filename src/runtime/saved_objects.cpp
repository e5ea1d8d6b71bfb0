#include "runtime/saved_objects.h"

#include "muster/base/error.h"
#include "prepared_optimizer.h"
#include "runtime/saved_tensors.h"

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

State position_state(const data::LoaderState& loader) {
  const auto position = loader.save_position();
  return State::Map{
      {"epoch", position.epoch}, {"samples", position.samples}, {"seed", position.seed}, {"dataset", position.dataset}};
}

data::LoaderPosition position_from(const State& state) {
  return {.dataset = state.at("dataset").text(),
          .epoch = state.at("epoch").integer(),
          .samples = state.at("samples").integer(),
          .seed = state.at("seed").as<uint64_t>()};
}

void load_position(const std::shared_ptr<data::LoaderState>& loader, const data::LoaderPosition& position,
                   AtomicLoad& load) {
  load.now([&] { loader->load_position(position); },
           [loader, before = loader->save_position()] { loader->load_position(before); });
}

}  // namespace muster::runtime

namespace muster {

SavedItem::SavedItem(const std::string& name, const Optimizer& optimizer)
    : SavedItem(
          name, [name, prepared = optimizer.prepared()](auto& shards) { return prepared->state_dict(name, shards); },
          [prepared = optimizer.prepared()](const State& state, const runtime::LoadFrom& from,
                                            runtime::AtomicLoad& load) {
            load.at_end(prepared->prepare_load(state, runtime::TensorReader(from.checkpoint)));
          }) {}

SavedItem::SavedItem(std::string name, const Scheduler& scheduler)
    : SavedItem(
          std::move(name), [saved = scheduler.saved()](auto&) { return saved->state_dict(); },
          [saved = scheduler.saved()](const State& state, const auto&, runtime::AtomicLoad& load) {
            load.now([&] { saved->load_state_dict(state); },
                     [saved, before = saved->state_dict()] { saved->load_state_dict(before); });
          }) {}

SavedItem::SavedItem(std::string name, const std::function<State()>& save,
                     const std::function<void(const State&)>& load)
    : SavedItem(
          std::move(name), [save](auto&) { return save(); },
          [save, load](const State& state, const auto&, runtime::AtomicLoad& loads) {
            loads.now([&] { load(state); }, [load, before = clone(save())] { load(before); });
          }) {}

void SavedItem::load_at_end(std::function<std::function<void()>(const State&)> read) {
  load_ = [read = std::move(read)](const State& state, const auto&, runtime::AtomicLoad& load) {
    load.at_end(read(state));
  };
}

SavedItem SavedItem::of(const std::string& name, const std::shared_ptr<runtime::PreparedModel>& model) {
  return {name, [name, model](auto& shards) { return runtime::save_weights_state(*model, name, shards); },
          [model](const State& state, const runtime::LoadFrom& from, runtime::AtomicLoad& load) {
            load.at_end(runtime::prepare_weights(*model, state, from.strict, runtime::TensorReader(from.checkpoint)));
          }};
}

SavedItem SavedItem::of(std::string name, const std::shared_ptr<data::LoaderState>& loader) {
  return {std::move(name), [loader](auto&) { return runtime::position_state(*loader); },
          [loader](const State& state, const auto&, runtime::AtomicLoad& load) {
            runtime::load_position(loader, runtime::position_from(state), load);
          }};
}

void SavedItem::load(const State& state, const runtime::LoadFrom& from, runtime::AtomicLoad& load) const {
  if (!load_)
    throw UsageError(
        "MU245", "\"" + name_ +
                     "\" was given as a temporary or a constant, so what the checkpoint holds of it has nowhere to go: "
                     "give a variable");
  load_(state, from, load);
}

}  // namespace muster
