#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "muster/precision/detail/policy.h"
#include "muster/track/detail/trace.h"
#include "muster/tree/detail/visit.h"

namespace muster::optim {
class FlatSource;
}
namespace muster::parallel {
class ManagedModel;
}

namespace muster {

namespace runtime {

template <class M>
concept ModuleType = std::derived_from<M, torch::nn::Module>;

/// The runtime's record of one prepared module. Shared by the handle, the optimizers and the runtime.
struct PreparedModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<parallel::ManagedModel> managed;
  precision::PrecisionPolicy policy;
  c10::DeviceType device;
  std::shared_ptr<Trace> trace;
};

/// Where an optimizer or an average finds the parameters of the model; borrowed from it.
optim::FlatSource* flat_source_of(const PreparedModel& model);

/// Scope of one forward of the model: autocast is on, parameters are in place.
class [[nodiscard]] ForwardScope {
 public:
  explicit ForwardScope(PreparedModel& model);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope();

 private:
  PreparedModel& model_;
  TraceScope span_;
  precision::AutocastScope cast_;
};

}  // namespace runtime

/// A prepared module: call it like the module itself. A cheap handle to shared state.
/// `model(x...)` and `model.run(...)` enter the forward scope of the strategy; `->`, `*` and ptr() give the bare
/// module, with no scope and no communication, for everything that is not a forward. Thread safety: one thread at a
/// time.
template <runtime::ModuleType M>
class Model {
 public:
  Model(std::shared_ptr<M> module, std::shared_ptr<runtime::PreparedModel> prepared)
      : module_(std::move(module)), prepared_(std::move(prepared)) {}

  /// Runs the module's forward. Collective: under strategies that shard parameters ("fsdp", "zero3", "hsdp").
  template <class... A>
  auto operator()(A&&... inputs) const {
    if constexpr (requires(M& module) { module.forward(converted(std::forward<A>(inputs))...); })
      return run_forward(converted(std::forward<A>(inputs))...);
    else return run_forward(input(std::forward<A>(inputs))...);
  }

  /// Runs any other function of the module: run(&Net::encode, x), or run([](Net& net, Tensor x) { ... }, x).
  /// Floating-point tensors in the inputs are converted as PrecisionPolicy::convert_input() does, alone and in tuples,
  /// lists, maps and optionals of tensors. Inputs of any other class, and inputs that the function takes by T&, are
  /// passed unchanged.
  /// Collective: as operator().
  template <class F, class... A>
  auto run(F&& entry, A&&... inputs) const {
    auto outputs = [&] {
      runtime::ForwardScope scope(*prepared_);
      if constexpr (std::invocable<F, M&, decltype(converted(std::forward<A>(inputs)))...>)
        return std::invoke(std::forward<F>(entry), *module_, converted(std::forward<A>(inputs))...);
      else return std::invoke(std::forward<F>(entry), *module_, input(std::forward<A>(inputs))...);
    }();
    tree::visit(outputs, [&](at::Tensor& tensor) { prepared_->policy.convert_output(tensor); });
    return outputs;
  }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  const std::shared_ptr<runtime::PreparedModel>& prepared() const { return prepared_; }

 private:
  template <class... A>
  auto run_forward(A&&... inputs) const {
    auto outputs = [&] {
      runtime::ForwardScope scope(*prepared_);
      return module_->forward(std::forward<A>(inputs)...);
    }();
    tree::visit(outputs, [&](at::Tensor& tensor) { prepared_->policy.convert_output(tensor); });
    return outputs;
  }

  /// As input(), but a nesting of tensors only becomes a copy with converted tensors.
  template <class T>
  decltype(auto) converted(T&& value) const {
    if constexpr (!tree::tensor<T> && tree::nests_tensors<T>)
      return tree::transform(std::remove_cvref_t<T>(std::forward<T>(value)), [&](at::Tensor tensor) {
        prepared_->policy.convert_input(tensor);
        return tensor;
      });
    else return input(std::forward<T>(value));
  }
  template <class T>
  decltype(auto) input(T&& value) const {
    if constexpr (std::same_as<std::remove_cvref_t<T>, at::Tensor>) {
      at::Tensor tensor = std::forward<T>(value);
      prepared_->policy.convert_input(tensor);
      return tensor;
    } else {
      return std::forward<T>(value);
    }
  }

  std::shared_ptr<M> module_;
  std::shared_ptr<runtime::PreparedModel> prepared_;
};

}  // namespace muster
