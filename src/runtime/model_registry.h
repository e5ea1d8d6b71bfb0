#pragma once

#include "muster/runtime/model.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace muster::runtime {

/// The models of one runtime, for its optimizers: who holds which parameter. Grows only.
class ModelRegistry {
 public:
  void add(const std::shared_ptr<PreparedModel>& model);
  /// The living models, in the order in which they were prepared.
  std::vector<std::shared_ptr<PreparedModel>> models() const;
  std::shared_ptr<PreparedModel> find(const torch::nn::Module& module) const;
  /// Changes whenever a model is added.
  int64_t generation() const noexcept { return generation_; }
  /// An optimizer has come to the end of a step, whether it changed anything or not.
  void note_step() { start_steps(steps_ + 1); }
  /// Steps are counted from here. Requires: every rank does so at the same point of the program.
  void start_steps(int64_t at);

 private:
  std::vector<std::weak_ptr<PreparedModel>> models_;
  int64_t generation_ = 0;
  int64_t steps_ = 0;
};

}  // namespace muster::runtime
