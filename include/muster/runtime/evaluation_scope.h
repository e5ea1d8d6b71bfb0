#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/model.h"

namespace muster {

/// Keeps modules in eval mode, and its thread without gradient recording, while it lives. Its destructor restores the
/// mode of every submodule and the gradient mode of the thread, also after an exception. Submodules that are registered
/// while it lives keep their mode.
/// Thread safety: destroy it on the thread that created it.
class [[nodiscard("name the scope: auto scope = evaluation(model)")]] EvaluationScope {
 public:
  explicit EvaluationScope(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;
  ~EvaluationScope();

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;  // with earlier modes; parents first
  c10::NoGradGuard no_grad_;
};

namespace runtime {
template <class M>
std::shared_ptr<torch::nn::Module> evaluated(M& model) {
  if constexpr (ModuleLike<M>) return module_pointer(model);
  else return model.ptr();
}
}  // namespace runtime

/// Opens an evaluation of models or modules: `auto scope = evaluation(model);`. It communicates nothing.
/// Throws: what train() of a module throws, after restoring all modes.
template <class... M>
EvaluationScope evaluation(M&&... models) {
  static_assert(sizeof...(M) > 0, "evaluation takes at least one model");
  return EvaluationScope({runtime::evaluated(models)...});
}

}  // namespace muster
