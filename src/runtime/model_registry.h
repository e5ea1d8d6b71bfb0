#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "parallel/reduction_record.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

using parallel::ReductionRecord;

/// The models of one runtime, in which optimizers find the model of each parameter. Models are only added.
class ModelRegistry {
 public:
  void add(const std::shared_ptr<PreparedModel>& model);
  /// The models that still exist, in the order in which they were prepared.
  std::vector<std::shared_ptr<PreparedModel>> models() const;
  std::shared_ptr<PreparedModel> find(const torch::nn::Module& module) const;
  /// Throws: UsageError (MU581) if an existing model trains a parameter of this module or has laid it out: both would
  /// communicate or move it independently.
  void require_unshared(const torch::nn::Module& module) const;
  /// Changes when a model is added.
  int64_t generation() const noexcept { return generation_; }
  /// Called at the end of an optimizer step, even if it changed nothing.
  void note_step() { start_steps(reductions_->step() + 1); }
  /// Sets the number of the current step. Requires: every rank does so at the same point of the program.
  void start_steps(int64_t at) { reductions_->set_step(at); }
  /// The gradient reductions of all models; index_of() gives a model's index in them.
  ReductionRecord& reductions() const noexcept { return *reductions_; }
  int64_t index_of(const PreparedModel& model) const;
  /// nullptr if the model no longer exists.
  std::shared_ptr<PreparedModel> at(int64_t index) const;

 private:
  std::vector<std::weak_ptr<PreparedModel>> models_;
  int64_t generation_ = 0;
  std::shared_ptr<ReductionRecord> reductions_ = std::make_shared<ReductionRecord>();
};

}  // namespace muster::runtime
