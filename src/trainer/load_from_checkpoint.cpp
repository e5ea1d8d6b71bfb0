#include "muster/trainer/load_from_checkpoint.h"

#include "base/log.h"
#include "checkpoint/python_content.h"
#include "core.h"
#include "lightning_file.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/runtime/opened_checkpoint.h"

namespace muster::trainer {

State saved_hyperparameters(const std::filesystem::path& checkpoint) {
  if (is_lightning_file(checkpoint)) {
    auto saved = read_lightning_file(checkpoint);
    if (!saved.left_out.empty())
      log::warning(checkpoint.string(), ": left out ", muster::checkpoint::listed(saved.left_out));
    return std::move(saved.hyper_parameters);
  }
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
  const bool bare = is_lightning_file(checkpoint) || holds_weights_only(checkpoint);
  load_state_dict(module, bare ? runtime::bare_weights(checkpoint, module) : runtime::checkpoint_weights(checkpoint));
}

}  // namespace muster::trainer
