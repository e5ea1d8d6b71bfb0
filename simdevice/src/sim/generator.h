#pragma once

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "muster/sim/sim.h"

namespace muster::sim {

/// Draws the numbers that the CPU would draw. They are drawn when an operator is called, not when it runs, so they do
/// not depend on the schedule.
class Generator final : public at::CPUGeneratorImpl {
 public:
  explicit Generator(int index) {
    device_ = sim::device(index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  /// Lets `draw` take numbers of this generator through a generator that CPU kernels accept.
  template <class Draw>
  void draw_on_cpu(Draw draw) {
    const std::lock_guard lock(mutex_);
    auto temporary = at::detail::createCPUGenerator();
    auto& cpu = *temporary.get<at::CPUGeneratorImpl>();
    copy_state(*this, cpu);
    draw(temporary);
    copy_state(cpu, *this);
  }
  /// A separate generator for one operator that draws when it runs.
  at::Generator branch() {
    const std::lock_guard lock(mutex_);
    return at::detail::createCPUGenerator(random64());
  }

 private:
  static void copy_state(at::CPUGeneratorImpl& from, at::CPUGeneratorImpl& to) {
    to.set_engine(from.engine());
    to.set_next_float_normal_sample(from.next_float_normal_sample());
    to.set_next_double_normal_sample(from.next_double_normal_sample());
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy_state(const_cast<Generator&>(*this), *copy);
    return copy;
  }
};

const at::Generator& default_generator(int device);

}  // namespace muster::sim
