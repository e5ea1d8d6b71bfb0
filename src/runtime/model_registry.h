#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "muster/parallel/detail/job_rounds.h"
#include "muster/runtime/detail/prepared_model.h"

namespace muster::runtime {

using parallel::JobRounds;

/// The models of one runtime, with which optimizers look up who holds which parameter. Grows only.
class ModelRegistry {
 public:
  void add(const std::shared_ptr<PreparedModel>& model);
  /// The models that still exist, in the order in which they were prepared.
  std::vector<std::shared_ptr<PreparedModel>> models() const;
  std::shared_ptr<PreparedModel> find(const torch::nn::Module& module) const;
  /// Changes whenever a model is added.
  int64_t generation() const noexcept { return generation_; }
  /// Called at the end of an optimizer step, whether it changed anything or not.
  void note_step() { start_steps(rounds_->step() + 1); }
  /// Sets the number of the current step. Requires: every rank does so at the same point of the program.
  void start_steps(int64_t at) { rounds_->set_step(at); }
  /// The gradient reductions of all models; place_of() gives a model's place in them.
  JobRounds& rounds() const noexcept { return *rounds_; }
  int64_t place_of(const PreparedModel& model) const;
  /// nullptr if the model no longer exists.
  std::shared_ptr<PreparedModel> at(int64_t place) const;

 private:
  std::vector<std::weak_ptr<PreparedModel>> models_;
  int64_t generation_ = 0;
  std::shared_ptr<JobRounds> rounds_ = std::make_shared<JobRounds>();
};

}  // namespace muster::runtime
