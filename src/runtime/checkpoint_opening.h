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

/// Folder of numbered checkpoints. Throws: ConfigError (MU244) if the options name none.
std::filesystem::path numbered_folder(const ProjectOptions& project);
/// The newest complete checkpoint of the project, as the main rank sees it, since other ranks may see an older one.
/// nullopt if there is none.
/// Collective.
std::optional<std::filesystem::path> newest_of_all(const comm::Communicator& group, const ProjectOptions& project);
/// The newest complete checkpoint of the project. Throws on all ranks: ConfigError (MU244) if there is none.
/// Collective.
std::filesystem::path latest_of_all(const comm::Communicator& group, const ProjectOptions& project);
/// Opens the checkpoint on every rank, and checks that all opened the same save. The ranks of a node share the
/// verification of its bytes: damage in one share is an error on all ranks before anything is loaded.
/// Throws: CheckpointError (MU247) if the saves differ. Collective.
Checkpoint open_on_all_ranks(const RuntimeState& state, const std::filesystem::path& folder);

/// Runs f on every rank, then commits what it prepared. If one rank throws, all throw and undo. Collective.
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
