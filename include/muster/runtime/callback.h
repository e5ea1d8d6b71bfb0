#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace muster {

class Optimizer;

/// Base class of callbacks. The runtime itself calls the two functions here; call(&Mine::on_epoch_end, arguments...) of
/// Accelerator and Fabric calls any other function of a derived class.
class FabricCallback {
 public:
  virtual ~FabricCallback() = default;
  /// Called after a module was prepared.
  virtual void on_after_setup(torch::nn::Module&) {}
  /// Called after a prepared optimizer made an update, but not after a skipped step. If a device decides whether to
  /// skip, as under loss scaling, a program with callbacks waits for it in each step.
  virtual void on_after_optimizer_step(Optimizer&) {}
};

namespace runtime {

/// Calls the member function on every callback whose class has it, in the order of the list.
template <class C, class... P, class... A>
void call_each(const std::vector<std::shared_ptr<FabricCallback>>& all, void (C::*member)(P...), A&&... arguments) {
  for (const auto& callback : all)
    if (auto* one = dynamic_cast<C*>(callback.get())) (one->*member)(arguments...);
}

}  // namespace runtime
}  // namespace muster
