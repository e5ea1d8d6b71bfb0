#include "muster/runtime/opened_checkpoint.h"

#include <utility>

#include "base/log.h"
#include "checkpoint_opening.h"
#include "job_state.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "runtime_state.h"
#include "sharded_tensors.h"

namespace muster {

namespace fs = std::filesystem;
using runtime::AtomicLoad;
using runtime::LoadedParts;

struct OpenedCheckpoint::Impl {
  std::shared_ptr<runtime::RuntimeState> runtime;
  fs::path folder;
  Checkpoint checkpoint;
  State shared;
  bool strict;

  void load(const LoadedParts& parts, bool fewer_loaders = false) const {
    AtomicLoad load;
    std::vector<std::string> notes;
    runtime::together(runtime->placement().group(), load, [&] {
      notes = load_job(runtime->stateful_objects(),
                       {.checkpoint = checkpoint,
                        .fewer_loaders = fewer_loaders,
                        .parts = parts,
                        .shared = shared,
                        .strict = strict},
                       load);
    });
    for (const auto& note : notes) log::warning("OpenedCheckpoint: " + note);
  }
};

OpenedCheckpoint::OpenedCheckpoint(const Runtime& runtime, const fs::path& folder, const LoadStateOptions& options) {
  auto state = runtime::state_of(runtime).shared_from_this();
  state->saves().wait();
  const auto where = folder.empty() ? runtime::latest_of_all(state->placement().group(), state->project()) : folder;
  auto checkpoint = runtime::open_on_all_ranks(*state, where);
  impl_ = std::make_unique<Impl>(Impl{.runtime = std::move(state),
                                      .folder = where,
                                      .checkpoint = std::move(checkpoint),
                                      .shared = {},
                                      .strict = options.strict});
  AtomicLoad nothing;
  runtime::together(impl_->runtime->placement().group(), nothing, [&] {
    impl_->shared = impl_->checkpoint.shared();
    runtime::call_hooks(*impl_->runtime->saves().before_load, impl_->shared, where);
  });
}

OpenedCheckpoint::OpenedCheckpoint(OpenedCheckpoint&&) noexcept = default;
OpenedCheckpoint& OpenedCheckpoint::operator=(OpenedCheckpoint&&) noexcept = default;
OpenedCheckpoint::~OpenedCheckpoint() = default;

const fs::path& OpenedCheckpoint::folder() const { return impl_->folder; }
const State& OpenedCheckpoint::shared() const { return impl_->shared; }
void OpenedCheckpoint::load_models() { impl_->load({.models = true}); }
void OpenedCheckpoint::load_optimizers() { impl_->load({.optimizers = true}); }
void OpenedCheckpoint::load_progress(bool fewer_loaders) {
  impl_->load({.progress = true}, fewer_loaders);
  impl_->runtime->note_loaded_epoch();
}

std::optional<State> checkpoint_entry(const Runtime& runtime, const fs::path& folder, const std::string& name) {
  const ReadCheckpointOptions how{.check = CheckpointCheck::as_read,
                                  .storage = runtime::state_of(runtime).project().storage};
  return Checkpoint(folder, how).shared_entry(name);
}

State runtime::checkpoint_weights(const fs::path& folder, std::size_t model) {
  const Checkpoint checkpoint(folder, {.check = CheckpointCheck::as_read});
  const auto models = checkpoint.shared_entry("models");
  if (!models || models->list().size() <= model)
    throw CheckpointError("MU209", formatted("{} holds {} models; the weights of model {} were asked for",
                                             folder.string(), models ? models->list().size() : 0, model));
  const TensorReader reader(&checkpoint);
  State weights = State::Map{};
  for (const auto& [name, saved] : models->list()[model].at("weights").map()) weights.set(name, reader.whole(saved));
  return weights;
}

}  // namespace muster
