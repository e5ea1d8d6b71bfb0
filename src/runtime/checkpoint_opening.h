#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "atomic_load.h"
#include "comm/agreement.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"
#include "runtime_state.h"

namespace muster::runtime {

void call_hooks(const Saves::Hooks& hooks, State& state, const std::filesystem::path& folder);

/// Where numbered checkpoints go. Throws: ConfigError (MU244) if the options name no folder.
std::filesystem::path numbered_folder(const ProjectOptions& project);
/// The newest whole checkpoint there, as the main rank says: what others see may be older. nullopt: there is none.
/// Collective.
std::optional<std::filesystem::path> newest_of_all(const comm::Communicator& group, const ProjectOptions& project);
/// The same. Throws on all ranks alike: ConfigError (MU244) if there is none. Collective.
std::filesystem::path latest_of_all(const comm::Communicator& group, const ProjectOptions& project);
/// Opens it on every rank, and compares which save each has opened. The ranks of a node share the check of its bytes:
/// what is wrong with one share is an error on all ranks before anything is handed out. Throws: CheckpointError (MU247)
/// if they differ. Collective.
Checkpoint open_on_all_ranks(const RuntimeState& state, const std::filesystem::path& folder);

/// Runs f on every rank, and what it prepared for the end; all of them throw if one does, and undo. Collective.
template <class F>
void together(const comm::Communicator& group, AtomicLoad& load, F&& f) {
  try {
    comm::all_gather_result(group, "loading a checkpoint", [&] { return f(), std::string(); });
  } catch (...) {
    load.undo();
    throw;
  }
  load.commit();
}

}  // namespace muster::runtime
