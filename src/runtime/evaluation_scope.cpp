#include "muster/runtime/evaluation_scope.h"

#include <exception>

#include "base/log.h"

namespace muster {
namespace {

// train() also sets all descendants: parents go first, then each child gets its own mode back.
void restore(const std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>& modes) {
  for (const auto& [module, training] : modes)
    if (module->is_training() != training) module->train(training);
}

}  // namespace

EvaluationScope::EvaluationScope(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  for (const auto& module : modules) {
    const auto children = module->modules(/*include_self=*/false);
    before_.emplace_back(module, module->is_training());
    for (const auto& child : children) before_.emplace_back(child, child->is_training());
  }
  try {
    for (const auto& module : modules) module->eval();
  } catch (...) {
    restore(before_);
    throw;
  }
}

EvaluationScope::~EvaluationScope() {
  try {
    restore(before_);
  } catch (const std::exception& error) {
    log::warning("the end of an evaluation could not restore the mode of a module: ", error.what());
  }
}

}  // namespace muster
