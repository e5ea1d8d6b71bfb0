#pragma once

#include <exception>
#include <filesystem>
#include <string>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Where an OnExceptionCheckpoint saves.
struct OnExceptionCheckpointOptions {
  std::filesystem::path dirpath = {};  ///< empty: "checkpoints" in the Trainer's default_root_dir
  std::string filename = "on_exception";
};

/// Saves a checkpoint where fit() ends by an exception, and removes it once a fit() ends well. One from inside of a
/// batch has a name of its own, "on_exception-in-batch", so that it replaces none that training can go on from. With
/// it, fit() begins as with ckpt_path = "last" where none is given, so that a program that is started again goes on.
/// All ranks must throw: where only some do, no checkpoint is written, and a warning says so.
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
  bool fits_ = false;  // in a fit()
};

}  // namespace muster
