#include "muster/trainer/detail/on_exception_checkpoint.h"

#include <system_error>
#include <utility>

#include "muster/base/detail/log.h"
#include "muster/base/error.h"
#include "muster/trainer/detail/trainer.h"

namespace muster {

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
  if (fits_ && !trainer.sanity_checking()) trainer.save_checkpoint(path_);
}

void OnExceptionCheckpoint::on_fit_end(Trainer& trainer, TrainerModule&) {
  std::error_code problem;
  if (trainer.runtime().is_main()) std::filesystem::remove_all(path_, problem);
  if (problem) log::warning("the checkpoint ", path_.string(), " cannot be removed: ", problem.message());
}

}  // namespace muster
