#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include "muster/base/handle.h"
#include "muster/optim/clip.h"
#include "muster/runtime/detail/converted_call.h"
#include "muster/tree/detail/visit.h"

namespace torch::nn {
class AnyModule;
}
namespace muster::optim {
class FlatParameters;
}
namespace muster::parallel {
class ManagedModel;
}

namespace muster {

namespace runtime {

template <class M>
concept ModuleType = std::derived_from<M, torch::nn::Module>;

/// The flat parameters of the model, for an optimizer or an average; borrowed from the model.
optim::FlatParameters* flat_parameters_of(const PreparedModel& model);

/// Calls `forward` in the scope of one forward of the model: autocast is on, parameters are in place.
void in_forward_scope(PreparedModel& model, c10::function_ref<void()> forward);
const std::shared_ptr<parallel::ManagedModel>& managed_by(const PreparedModel& model);
GradNorm grad_norm_of(const PreparedModel& model);

}  // namespace runtime

/// A prepared module: call it like the module itself. A cheap handle to shared state.
/// `model(x...)` and `model.run(...)` enter the forward scope of the strategy; `->`, `*` and ptr() return the bare
/// module, without scope or communication, for everything that is not a forward.
/// A default-constructed handle is empty until the result of prepare() is assigned to it; M may then be incomplete, so
/// that Model<NetImpl> can be a member of NetImpl. Thread safety: one thread at a time.
/// Throws: UsageError (MU322), from every function, if the handle is empty.
template <class M>
class Model {
 public:
  /// An empty handle.
  Model() = default;
  /// The handle that prepare() returns.
  Model(std::shared_ptr<M> module, std::shared_ptr<runtime::PreparedModel> prepared)
      : module_(std::move(module)), prepared_(std::move(prepared)) {}
  /// Whether the handle is not empty.
  explicit operator bool() const noexcept { return static_cast<bool>(prepared_); }

  /// Runs the module's forward. Collective: under strategies that shard parameters ("fsdp", "zero3", "hsdp").
  template <class... A>
    requires runtime::ModuleType<M>
  auto operator()(A&&... inputs) const {
    return call(runtime::Forward(), std::forward<A>(inputs)...);
  }

  /// Runs any other function of the module: run(&Net::encode, x), or run([](Net& net, Tensor x) { ... }, x).
  /// Floating-point tensors in the inputs are converted as PrecisionPolicy::convert_input() does, alone and in tuples,
  /// lists, maps and optionals of tensors. Inputs of any other class, and inputs that the function takes by T&, are
  /// passed unchanged; a tensor that it takes by Tensor& is a copy if the precision converts it.
  /// Collective: as operator().
  template <class F, class... A>
    requires runtime::ModuleType<M>
  auto run(F&& entry, A&&... inputs) const {
    return call(std::forward<F>(entry), std::forward<A>(inputs)...);
  }

  /// Returns the 2-norm of all gradients of the module together, after unscaling; under every strategy, the norm of the
  /// full gradients. The norm of gradients on a device goes to the host only when it is read. Returns 0, as clipping
  /// does, before the last micro-batch of an accumulation window. Call it between backward and the optimizer's step.
  /// Collective: if the strategy shards gradients, and if a rank's loss did not use the model (see Optimizer::step()).
  /// Throws: UsageError (MU324) if the object that prepared the model no longer exists.
  GradNorm grad_norm() const { return runtime::grad_norm_of(*prepared_); }

  /// The module itself.
  M* operator->() const { return module_.operator->(); }
  /// The module itself.
  M& operator*() const { return *module_; }
  /// The module itself, shared.
  const std::shared_ptr<M>& ptr() const { return module_.pointer(); }
  /// The parameters of the module, as its parameters() returns them; shards, if the strategy shards parameters.
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  /// The prepared module, for Muster's internal functions.
  const std::shared_ptr<runtime::PreparedModel>& prepared() const { return prepared_.pointer(); }

 protected:
  /// Calls entry(module, inputs...) as a forward: with converted inputs and outputs, and the hooks of the strategy.
  template <class F, class... A>
  auto call(F&& entry, A&&... inputs) const {
    auto run = [&] {
      return runtime::call_converted(*prepared_, std::forward<F>(entry), *module_, std::forward<A>(inputs)...);
    };
    if constexpr (std::is_void_v<decltype(run())>) {
      runtime::in_forward_scope(*prepared_, run);
    } else {
      std::optional<decltype(run())> outputs;
      runtime::in_forward_scope(*prepared_, [&] { outputs.emplace(run()); });
      tree::visit(*outputs, [&](at::Tensor& tensor) { runtime::convert_output(*prepared_, tensor); });
      return *std::move(outputs);
    }
  }

 private:
  Shared<HandleType::model, M> module_;
  Shared<HandleType::model, runtime::PreparedModel> prepared_;
};

/// A prepared torch::nn::AnyModule. `->`, `*` and ptr() return the module that it holds.
template <class M>
  requires std::same_as<M, torch::nn::AnyModule>
class Model<M> : public Model<torch::nn::Module> {
 public:
  /// An empty handle.
  Model() = default;
  /// The handle that prepare() returns.
  Model(M any, std::shared_ptr<runtime::PreparedModel> prepared)
      : Model<torch::nn::Module>(any.ptr(), std::move(prepared)), any_(std::make_shared<M>(std::move(any))) {}

  /// Runs the forward of the held module. Collective: as Model::operator().
  template <class... A>
  auto operator()(A&&... inputs) const {
    return forward(std::forward<A>(inputs)...);
  }
  /// Runs a forward that returns an R: model.forward<std::tuple<Tensor, Tensor>>(x). Collective: as Model::operator().
  template <class R = at::Tensor, class... A>
  R forward(A&&... inputs) const {
    return this->call(
        [&any = *any_](torch::nn::Module&, auto&&... converted) {
          return any.template forward<R>(std::forward<decltype(converted)>(converted)...);
        },
        std::forward<A>(inputs)...);
  }

 private:
  Shared<HandleType::model, M> any_;
};

}  // namespace muster
