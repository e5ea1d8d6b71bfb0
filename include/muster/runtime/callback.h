#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace muster {

class Optimizer;

/// What wants to be told of a program's course. The two functions here are called by the runtime itself; any other that a
/// class derived from this has is called by Fabric::call(&Mine::on_epoch_end, arguments...).
class Callback {
 public:
  virtual ~Callback() = default;
  /// A module was prepared.
  virtual void on_after_setup(torch::nn::Module&) {}
  /// A prepared optimizer made an update; not after a skipped one.
  virtual void on_after_optimizer_step(Optimizer&) {}
};

namespace runtime {

/// Calls the member of every callback whose class has it, in the order of the list.
template <class C, class... P, class... A>
void call_each(const std::vector<std::shared_ptr<Callback>>& callbacks, void (C::*member)(P...), A&&... arguments) {
  for (const auto& callback : callbacks)
    if (auto* one = dynamic_cast<C*>(callback.get())) (one->*member)(arguments...);
}

}  // namespace runtime
}  // namespace muster
