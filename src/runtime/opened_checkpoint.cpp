#include "muster/runtime/opened_checkpoint.h"

#include "base/log.h"
#include "base/text.h"
#include "base/variables.h"
#include "job_state.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime.h"
#include "runtime/saved_tensors.h"
#include "runtime_state.h"

namespace muster::runtime {

namespace fs = std::filesystem;

void call_hooks(const Saves::Hooks& hooks, State& state, const fs::path& folder) {
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): a hook may remove itself
  const auto copy = hooks;
  for (const auto& [_, hook] : copy) hook(state, folder);
}

fs::path numbered_folder(const ProjectOptions& project) {
  if (!project.automatic_checkpoint_naming)
    throw ConfigError("MU244",
                      "no folder was given for a checkpoint, and none follows from the options: name it, or set "
                      "project.automatic_checkpoint_naming and project.directory");
  return fs::path(project.directory) / "checkpoints";
}

std::optional<fs::path> newest_of_all(const comm::Communicator& group, const ProjectOptions& project) {
  const auto folder = numbered_folder(project);
  const auto name = comm::broadcast_result(group, "which checkpoint is the newest", [&] {
    const auto latest = latest_checkpoint(folder, project.storage);
    return latest ? latest->filename().string() : std::string();
  });
  return name.empty() ? std::nullopt : std::optional(folder / name);
}

fs::path latest_of_all(const comm::Communicator& group, const ProjectOptions& project) {
  if (const auto newest = newest_of_all(group, project)) return *newest;
  throw ConfigError("MU244", "there is no checkpoint in " + numbered_folder(project).string() +
                                 " to load; save one first, or name the folder");
}

Checkpoint open_on_all_ranks(const RuntimeState& state, const fs::path& folder) {
  std::optional<Checkpoint> checkpoint;
  const ReadCheckpointOptions how{.check = CheckpointCheck::share,
                                  .part = state.placement().cluster().local_rank,
                                  .parts = state.placement().cluster().local_world_size,
                                  .storage = state.project().storage};
  const auto ids = comm::all_gather_result(state.placement().group(),
                                           "checking and comparing the checkpoints that ranks have opened",
                                           [&] { return checkpoint.emplace(folder, how).id(); });
  if (const auto found = comm::first_difference(ids))
    throw CheckpointError("MU247", formatted("rank 0 and rank {} opened different saves of {} ({} and {}): all ranks "
                                             "must see the same folder, and no job may "
                                             "save to it meanwhile; nothing was loaded",
                                             found->rank, folder.string(), shown(found->first), shown(found->other)));
  return *std::move(checkpoint);
}

}  // namespace muster::runtime

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
  impl_ = std::make_shared<Impl>(Impl{.runtime = std::move(state),
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

std::optional<fs::path> runtime::checkpoint_to_resume(const Runtime& runtime) {
  auto& state = runtime::state_of(runtime);
  state.saves().wait();
  const auto folder = runtime::newest_of_all(state.placement().group(), state.project());
  if (state.placement().cluster().is_main()) {
    const auto where = runtime::numbered_folder(state.project()).string();
    if (folder) log::info("resume(): ", folder->string(), " is loaded");
    else if (state.placement().cluster().restart_count == 0) log::info("resume(): there is no checkpoint in ", where);
    else
      log::warning("resume(): there is no complete checkpoint in ", where,
                   ": this start of the job begins from scratch");
  }
  return folder;
}

std::optional<std::chrono::system_clock::time_point> runtime::start_of_restarted_job(const Runtime& runtime) {
  const auto& cluster = runtime::state_of(runtime).placement().cluster();
  const auto text = Environment::of_process().find(cluster::kJobStart);
  if (cluster.launcher != LauncherKind::muster || cluster.restart_count == 0 || !text) return std::nullopt;
  return std::chrono::system_clock::time_point(std::chrono::milliseconds(std::strtoll(text->c_str(), nullptr, 10)));
}

bool resume(Runtime& runtime, const LoadStateOptions& options) {
  const auto folder = runtime::checkpoint_to_resume(runtime);
  if (folder) runtime.load_state(*folder, options);
  return folder.has_value();
}

}  // namespace muster
