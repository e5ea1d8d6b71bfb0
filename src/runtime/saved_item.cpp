#include "muster/runtime/saved_item.h"

#include "saved_position.h"
#include "model_state.h"
#include "prepared_optimizer.h"
#include "saved_scheduler.h"

#include "muster/base/error.h"

namespace muster {

SavedItem::SavedItem(std::string name, const Optimizer& optimizer)
    : SavedItem(std::move(name), [prepared = optimizer.prepared()] { return prepared->save_state(); },
                [prepared = optimizer.prepared()](const State& state, bool, runtime::AtomicLoad& load) { load.at_end(prepared->prepare_load(state)); }) {}

SavedItem::SavedItem(std::string name, const Scheduler& scheduler)
    : SavedItem(std::move(name), [saved = scheduler.saved()] { return saved->save_state(); },
                [saved = scheduler.saved()](const State& state, bool, runtime::AtomicLoad& load) {
                  load.now([&] { saved->load_state(state); }, [saved, before = saved->save_state()] { saved->load_state(before); });
                }) {}

SavedItem SavedItem::of(std::string name, const std::shared_ptr<runtime::PreparedModel>& model) {
  return {std::move(name), [model] { return runtime::save_weights_state(*model).at("weights"); },
          [model](const State& state, bool strict, runtime::AtomicLoad& load) { load.at_end(runtime::prepare_weights(*model, state, strict)); }};
}

SavedItem SavedItem::of(std::string name, const std::shared_ptr<data::LoaderState>& loader) {
  return {std::move(name), [loader] { return runtime::position_state(*loader); },
          [loader](const State& state, bool, runtime::AtomicLoad& load) { runtime::load_position(loader, runtime::position_from(state), load); }};
}

void SavedItem::load(const State& state, bool strict, runtime::AtomicLoad& load) const {
  if (!load_)
    throw UsageError("MU245", "\"" + name_ + "\" was given as a temporary or a constant, so what the checkpoint holds of it has nowhere to go: "
                              "give a variable");
  load_(state, strict, load);
}

}  // namespace muster
