#pragma once

#include <c10/core/Device.h>

#include "accumulation.h"
#include "comm/agreement.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/comm/communicator.h"
#include "muster/data/detail/loader_state.h"
#include "muster/runtime/options.h"
#include "muster/runtime/saved_item.h"
#include "muster/tree/state.h"
#include "prepared_optimizer.h"
#include "runtime/prepared_model.h"
#include "runtime/saved_objects.h"

namespace muster::runtime {

class RuntimeState;

// Why: docs/decisions/0062-the-state-of-a-job.md.

/// The objects whose states make up the state of a job (Stateful objects in torch.distributed.checkpoint), in the order
/// of preparation or registration.
struct StatefulObjects {
  std::shared_ptr<Accumulation> accumulation;
  c10::Device device;
  comm::Communicator group;
  std::vector<std::shared_ptr<data::LoaderState>> loaders;
  std::vector<std::shared_ptr<PreparedModel>> models;
  std::vector<SavedItem> objects;
  std::vector<std::shared_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::shared_ptr<const SavedScheduler>> schedulers;
};

/// Takes the state of the job. Collective. Throws: CheckpointError (MU241).
CheckpointContents save_job(const StatefulObjects& contents);

/// Which states are loaded together.
struct LoadedParts {
  bool models = false;      ///< models, with the states of their communication hooks
  bool optimizers = false;  ///< optimizers, with their schedulers
  bool progress = false;    ///< objects, loaders, the window and its gradients, random generators
};

/// How the state of a job is loaded.
struct JobLoad {
  const Checkpoint& checkpoint;
  bool fewer_loaders = false;  ///< the program may have fewer loaders than the checkpoint, namely its first ones
  LoadedParts parts = {.models = true, .optimizers = true, .progress = true};
  const State& shared;  ///< the checkpoint's shared state, after the hooks
  bool strict = true;   ///< a name or an object that only the checkpoint or only the program has is an error
};

/// Checks that the states fit, and loads what can only be loaded whole; models and optimizers follow in load.commit().
/// Returns lines about state that cannot be kept.
/// Throws: CheckpointError (MU240, MU242), and what the contents throw for their states.
std::vector<std::string> load_job(const StatefulObjects& contents, const JobLoad& how, AtomicLoad& load);

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
