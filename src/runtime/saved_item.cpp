#include "muster/runtime/saved_item.h"

#include <utility>

#include "atomic_load.h"
#include "model_state.h"
#include "muster/base/error.h"
#include "prepared_optimizer.h"
#include "saved_position.h"
#include "saved_scheduler.h"

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
