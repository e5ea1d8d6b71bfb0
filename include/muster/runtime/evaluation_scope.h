#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/model.h"

namespace muster {

/// While it lives, modules are in eval mode and the thread that made it records no gradients. Its end, by an exception
/// too, gives every submodule the mode from before, and the thread its gradient mode.
/// Submodules that are registered meanwhile keep their mode. Thread safety: destroy it on the thread that made it.
class [[nodiscard("name the scope: auto scope = evaluation(model)")]] EvaluationScope {
 public:
  explicit EvaluationScope(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;
  ~EvaluationScope();

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;  // parents before their children
  c10::NoGradGuard no_grad_;
};

namespace runtime {
template <class M>
std::shared_ptr<torch::nn::Module> evaluated(const Model<M>& model) {
  return model.ptr();
}
template <ModuleLike M>
std::shared_ptr<torch::nn::Module> evaluated(M& module) {
  return module_pointer(module);
}
}  // namespace runtime

/// Opens an evaluation of models or modules: `auto scope = evaluation(model);`. It communicates nothing.
/// Throws: what a module's own train() throws, with all modes as they were.
template <class... M>
EvaluationScope evaluation(M&&... models) {
  static_assert(sizeof...(M) > 0, "evaluation takes at least one model");
  return EvaluationScope({runtime::evaluated(models)...});
}

}  // namespace muster
