#include "muster/trainer/detail/load_from_checkpoint.h"

#include "core.h"
#include "lightning_file.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"

namespace muster::trainer {

State saved_hyperparameters(const std::filesystem::path& checkpoint) {
  if (is_lightning_file(checkpoint)) return read_lightning_file(checkpoint).hyper_parameters;
  if (holds_weights_only(checkpoint)) return {};
  const auto entry = Checkpoint(checkpoint, {.check = CheckpointCheck::as_read}).shared_entry(kTrainerEntry);
  const auto* saved = entry ? entry->find("hyper_parameters") : nullptr;
  return saved ? *saved : State();
}

State hyperparameters_in(const std::filesystem::path& checkpoint) {
  if (auto saved = saved_hyperparameters(checkpoint); !saved.empty()) return saved;
  throw CheckpointError("MU465", checkpoint.string() +
                                     " holds no hyper-parameters: call save_hyperparameters(options) in the module's "
                                     "constructor before it is trained, or make the module yourself and load its "
                                     "weights");
}

void load_weights(TrainerModule& module, const std::filesystem::path& checkpoint) {
  module.configure_model();
  State state = State::Map{};
  if (is_lightning_file(checkpoint)) {
    state = read_lightning_file(checkpoint).weights;
  } else if (holds_weights_only(checkpoint)) {
    for (auto& [name, tensor] : load_file(checkpoint).tensors) state.set(name, tensor);
  } else {
    state = runtime::checkpoint_weights(checkpoint);
  }
  load_state_dict(module, state);
}

}  // namespace muster::trainer
