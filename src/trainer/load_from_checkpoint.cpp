#include "muster/trainer/load_from_checkpoint.h"

#include <initializer_list>
#include <string_view>
#include <system_error>

#include "base/log.h"
#include "checkpoints.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/runtime/opened_checkpoint.h"

namespace muster::trainer {
namespace {

/// The state at this path of names; nullptr if there is none.
const State* inside(const State& state, std::initializer_list<std::string_view> names) {
  const State* found = &state;
  for (const auto name : names) {
    found = found->find(name);
    if (!found) return nullptr;
  }
  return found;
}

}  // namespace

bool is_lightning_file(const std::filesystem::path& checkpoint) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(checkpoint, ignored);
}

LightningFile read_lightning_file(const std::filesystem::path& checkpoint) {
  const auto content = muster::checkpoint::read_python(checkpoint);
  const auto& saved = content.value;
  const auto* step = saved.find("global_step");
  if (!saved.find("state_dict") || !step)
    throw CheckpointError("MU466",
                          checkpoint.string() +
                              " is not a checkpoint of Lightning's: it has no state_dict and global_step; load "
                              "other weights by load_model()");
  LightningFile file{.global_step = step->integer()};
  if (const auto* options = saved.find("hyper_parameters")) file.hyper_parameters = *options;
  if (const auto* epochs = inside(saved, {"loops", "fit_loop", "epoch_progress", "current", "processed"}))
    file.epochs = epochs->integer();
  for (const auto& part : content.left_out)
    if (part.place.substr(0, part.place.find('/')) == "hyper_parameters") file.left_out.push_back(part);
  return file;
}

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
