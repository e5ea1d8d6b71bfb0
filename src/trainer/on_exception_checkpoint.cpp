#include <system_error>
#include <utility>

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

namespace muster {

// NOLINTNEXTLINE(bugprone-throw-keyword-missing): a callback, not an exception
OnExceptionCheckpoint::OnExceptionCheckpoint(OnExceptionCheckpointOptions options) : options_(std::move(options)) {
  if (options_.filename.empty())
    throw ConfigError("MU451", "the options of OnExceptionCheckpoint do not work: filename is empty; give a name");
}

void OnExceptionCheckpoint::setup(Trainer& trainer, TrainerModule&, Stage stage) {
  const auto folder = options_.dirpath.empty() ? trainer.options().default_root_dir / "checkpoints" : options_.dirpath;
  path_ = folder / (options_.filename + ".ckpt");
  fits_ = stage == Stage::fit;
}

void OnExceptionCheckpoint::on_exception(Trainer& trainer, TrainerModule&, const std::exception_ptr&) {
  if (!fits_ || !trainer.fitting()) return;
  trainer.save_checkpoint(trainer.saves_inside_batch() ? inside_batch() : path_);
}

// A separate name: a complete checkpoint of an earlier start may be the only one that "last" can choose.
std::filesystem::path OnExceptionCheckpoint::inside_batch() const {
  return path_.parent_path() / (options_.filename + "-in-batch.ckpt");
}

void OnExceptionCheckpoint::on_fit_end(Trainer& trainer, TrainerModule&) {
  if (!trainer.runtime().is_main()) return;
  for (const auto& path : {path_, inside_batch()}) {
    std::error_code problem;
    std::filesystem::remove_all(path, problem);
    if (problem) log::warning("the checkpoint ", path.string(), " cannot be removed: ", problem.message());
  }
}

}  // namespace muster
