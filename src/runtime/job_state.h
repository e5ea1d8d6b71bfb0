#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "accumulation.h"
#include "atomic_load.h"
#include "muster/comm/communicator.h"
#include "muster/data/detail/loader_state.h"
#include "muster/runtime/saved_item.h"
#include "muster/tree/state.h"
#include "prepared_optimizer.h"
#include "runtime/prepared_model.h"
#include "saved_scheduler.h"

namespace muster::runtime {

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

}  // namespace muster::runtime
