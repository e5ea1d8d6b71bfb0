#include "muster/runtime/detail/saving.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "checkpoint_opening.h"
#include "job_state.h"
#include "muster/base/detail/log.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/weights.h"
#include "muster/comm/detail/device_agreement.h"
#include "muster/parallel/detail/capabilities.h"
#include "muster/parallel/detail/managed_model.h"
#include "muster/runtime/detail/process_control.h"
#include "runtime_state.h"
#include "weight_stream.h"

namespace muster::runtime {
namespace {

namespace fs = std::filesystem;

RemovableHandle add_hook(const std::shared_ptr<Saves::Hooks>& hooks, Saves::Hook hook) {
  const auto key = hooks->empty() ? 0 : hooks->rbegin()->first + 1;
  hooks->emplace(key, std::move(hook));
  return RemovableHandle([key, weak = std::weak_ptr(hooks)] {
    if (const auto alive = weak.lock()) alive->erase(key);
  });
}

/// What is left of an item by its filter.
State filtered(State state, const std::function<bool(const std::string&, const State&)>& keep) {
  State::Map kept;
  for (auto& [name, value] : state.map())
    if (keep(name, value)) kept.emplace_back(name, std::move(value));
  return kept;
}

}  // namespace

fs::path Saving::save_state(const fs::path& folder, const SaveStateOptions& options) {
  auto& saves = state_->saves();
  wait_for_save();
  const auto& project = state_->project();
  const WriteCheckpointOptions how{.durability = options.durability,
                                   .numbered = folder.empty(),
                                   .storage = project.storage,
                                   .total_limit = project.total_limit};
  const auto where = folder.empty() ? numbered_folder(project) : folder;
  auto job = save_job(state_->stateful_objects());
  call_hooks(*saves.before_save, job.shared, where);
  if (!options.asynchronous) return write_checkpoint(job, where, state_->group(), how);
  if (!saves.writer || saves.writer_options != how) {
    saves.writer = std::make_unique<CheckpointWriter>(state_->group(), how);
    saves.writer_options = how;
  }
  saves.writer->start(job, where);
  return where;
}

fs::path Saving::wait_for_save() { return state_->saves().wait(); }

void Saving::load_state(const fs::path& folder, const LoadStateOptions& options) {
  auto& saves = state_->saves();
  wait_for_save();
  AtomicLoad load;
  std::vector<std::string> notes;
  const auto where = folder.empty() ? latest_of_all(state_->group(), state_->project()) : folder;
  const auto checkpoint = open_on_all_ranks(*state_, where);
  together(state_->group(), load, [&] {
    auto shared = checkpoint.shared();
    call_hooks(*saves.before_load, shared, where);
    notes = load_job(state_->stateful_objects(), {.checkpoint = checkpoint, .shared = shared, .strict = options.strict},
                     load);
  });
  state_->note_loaded_epoch();
  for (const auto& note : notes) log::warning("load_state: " + note);
}

RemovableHandle Saving::register_save_state_pre_hook(Saves::Hook hook) {
  return add_hook(state_->saves().before_save, std::move(hook));
}
RemovableHandle Saving::register_load_state_pre_hook(Saves::Hook hook) {
  return add_hook(state_->saves().before_load, std::move(hook));
}
void Saving::keep_object(const std::function<State()>& save, const std::function<void(const State&)>& load) {
  state_->saves().objects.emplace_back(std::string(), save, load);
}

void Saving::save(const fs::path& folder, const std::vector<SavedItem>& items, const SaveFilter& filter) {
  wait_for_save();
  for (const auto& [name, _] : filter)
    if (std::none_of(items.begin(), items.end(), [&](const auto& item) { return item.name() == name; }))
      throw ConfigError("MU246", "a filter was given for \"" + name + "\", which is not among the things to save");
  comm::require_same_device_operations(state_->group());
  CheckpointContents contents{.shared = State::Map{}};
  for (const auto& item : items) {
    auto state = item.save(contents.shards);
    if (const auto found = filter.find(item.name()); found != filter.end())
      state = filtered(std::move(state), found->second);
    contents.shared.set(item.name(), std::move(state));
  }
  write_checkpoint(contents, folder, state_->group(), {.storage = state_->project().storage});
}

State Saving::load(const fs::path& folder) { return load(folder, {}); }
State Saving::load(const fs::path& folder, const std::vector<SavedItem>& items, const LoadStateOptions& options) {
  wait_for_save();
  AtomicLoad load;
  State rest = State::Map{};
  const auto checkpoint = open_on_all_ranks(*state_, folder);
  together(state_->group(), load, [&] {
    const auto shared = checkpoint.shared();
    const auto asked = [&](const std::string& name) {
      return std::any_of(items.begin(), items.end(), [&](const auto& item) { return item.name() == name; });
    };
    for (const auto& item : items) {
      const auto* found = shared.find(item.name());
      if (found) item.load(*found, {&checkpoint, options.strict}, load);
      else if (options.strict) shared.at(item.name());  // says what there is
    }
    for (const auto& [name, state] : shared.map())
      if (!asked(name)) rest.set(name, state);
  });
  return rest;
}

void Saving::with_full_params(const PreparedModel& model, const std::function<void()>& f,
                              const FullParamsOptions& options) {
  if (auto* sharded = model.managed->sharded_parameters()) sharded->summon_full_params(f, options);
  else f();
}

void Saving::write_model(const PreparedModel& model, const std::filesystem::path& folder,
                         const SaveWeightsOptions& options) const {
  comm::require_same_device_operations(state_->group());
  WeightStream stream(model, state_->group());
  // Only the main rank writes, and all learn how it went.
  first_here(state_->group(), /*first=*/true, [&] {
    stream.run([&](const NamedTensors& tensors, const ValueOf& value_of) {
      save_weights(tensors, folder, options, value_of);
    });
  });
}

}  // namespace muster::runtime
