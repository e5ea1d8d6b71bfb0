#include "checkpoint_opening.h"

#include <optional>
#include <utility>

#include "base/shown.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

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
