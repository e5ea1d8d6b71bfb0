#pragma once

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "muster/graph/options.h"
#include "muster/tree/detail/visit.h"

namespace muster {

namespace graph {

class Blocks;
class Recording;

/// One run of a function that backward runs again. While it exists, what autograd saves on this thread is not kept.
class Rerun {
 public:
  using Function = std::function<void(const std::vector<at::Tensor>& inputs)>;
  /// `again`: runs the function on these tensors in place of its own.
  Rerun(const std::vector<at::Tensor>& inputs, Function again);
  ~Rerun();
  Rerun(const Rerun&) = delete;
  Rerun& operator=(const Rerun&) = delete;

 private:
  class Scope;
  std::unique_ptr<Scope> scope_;  // nullptr where nothing is to be made again
};

}  // namespace graph

/// Returns f(inputs...). What autograd saves in it is not kept: backward calls f again, and drops what that has saved
/// when it has used it. Inputs and outputs are any values made of tensors (see docs/concepts/values.md); tensors that f
/// captures are kept as they are. Calls may be nested. f runs with the state of random generators and of autocast that
/// the first call had, and stops when the last tensor that is needed was saved. In a block that is recomputed anyway,
/// and where gradients are off, it is a plain call.
/// Requires: f, which is copied, does the same again, and changes nothing that it does not own; what it refers to lives
/// until backward has run; nobody changes its inputs in place before.
/// Throws: UsageError (MU592, in backward) if f saves other tensors than before, naming the first that differs;
/// (MU586, in backward) if an input was changed; (MU587) if the process cannot have the engine that this needs.
/// Source: the non-reentrant form of torch.utils.checkpoint.
template <class F, class... Inputs>
auto recompute(F&& f, Inputs&&... inputs) {
  std::tuple<std::decay_t<Inputs>...> values(std::forward<Inputs>(inputs)...);
  std::vector<at::Tensor> tensors;
  tree::visit(values, [&](at::Tensor& tensor) { tensors.push_back(std::exchange(tensor, at::Tensor())); });
  auto call = [f = std::decay_t<F>(std::forward<F>(f)),
               values = std::move(values)](const std::vector<at::Tensor>& given) mutable {
    auto own = values;
    size_t next = 0;
    tree::visit(own, [&](at::Tensor& tensor) { tensor = given[next++]; });
    return std::apply(f, std::move(own));
  };
  const graph::Rerun rerun(tensors,
                           [call](const std::vector<at::Tensor>& given) mutable { static_cast<void>(call(given)); });
  return call(tensors);
}

/// One forward of a module whose activations backward makes again, for programs without Accelerator, Fabric or Trainer,
/// which have the option `recompute`:
/// @code
///   torch::Tensor loss;
///   {
///     muster::RecomputeScope scope(*net, {.blocks = {"TransformerEncoderLayer"}});
///     loss = net->forward(x).mean();
///   }
///   loss.backward();
/// @endcode
/// The module is not changed. Operators that run on this thread in the scope are recorded; backward replays those that
/// saved tensors of a block need, once per block, and gets the same bits. Does nothing where gradients are off. The
/// first scope of a module compares what is made again (RecomputeOptions::check).
/// Throws: ConfigError (MU148) if no submodule is what `blocks` or `types` names; UsageError (MU587) if the process
/// cannot have the recorder.
/// Thread safety: made, used and destroyed by one thread; several threads may have scopes at the same time.
class RecomputeScope {
 public:
  RecomputeScope(const torch::nn::Module& module, const RecomputeOptions& options);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  std::unique_ptr<graph::Blocks> blocks_;
  std::unique_ptr<graph::Recording> recording_;
};

}  // namespace muster
