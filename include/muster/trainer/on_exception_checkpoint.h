#pragma once

#include <exception>
#include <filesystem>
#include <string>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Options of OnExceptionCheckpoint.
struct OnExceptionCheckpointOptions {
  std::filesystem::path dirpath = {};  ///< empty: "checkpoints" in the Trainer's default_root_dir
  std::string filename = "on_exception";
};

/// Saves a checkpoint if an exception ends fit(), and removes it once a fit() succeeds. A checkpoint from inside a
/// batch is named "on_exception-in-batch", so that it does not replace one from which training can continue. With this
/// callback, fit() without a ckpt_path uses "last", so that a restarted program continues. All ranks must throw: if
/// only some do, no checkpoint is written, and a warning is logged.
class OnExceptionCheckpoint : public Callback {
 public:
  /// Throws: ConfigError (MU451) for an empty filename.
  explicit OnExceptionCheckpoint(OnExceptionCheckpointOptions options = {});
  /// The checkpoint's folder. Requires: setup() was called.
  const std::filesystem::path& ckpt_path() const noexcept { return path_; }

  Place place() const override { return Place::last; }
  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_exception(Trainer& trainer, TrainerModule& module, const std::exception_ptr& error) override;
  void on_fit_end(Trainer& trainer, TrainerModule& module) override;

 private:
  std::filesystem::path inside_batch() const;

  OnExceptionCheckpointOptions options_;
  std::filesystem::path path_;
  bool fits_ = false;  // set during a fit()
};

}  // namespace muster
