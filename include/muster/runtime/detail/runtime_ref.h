#pragma once

#include <concepts>

namespace muster {

namespace runtime {
class RuntimeState;
}

/// The runtime behind an Accelerator, a Fabric or a Runtime, as the functions of muster/runtime/extras.h take it.
/// Borrowed: it must outlive the call.
class RuntimeRef {
 public:
  template <class R>
    requires requires(const R& runtime) {
      { runtime.state() } -> std::same_as<runtime::RuntimeState&>;
    }
  RuntimeRef(const R& runtime) : state_(runtime.state()) {}
  runtime::RuntimeState& state() const noexcept { return state_; }

 private:
  runtime::RuntimeState& state_;
};

}  // namespace muster
