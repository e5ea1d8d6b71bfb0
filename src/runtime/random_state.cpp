#include "random_state.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace muster::runtime {
namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state.clone());
}

}  // namespace

State random_state(c10::Device device) {
  State state = State::Map{{"cpu", state_of(at::detail::getDefaultCPUGenerator())}};
  if (!device.is_cpu())
    state.set(c10::DeviceTypeName(device.type(), true), state_of(at::globalContext().defaultGenerator(device)));
  return state;
}

void set_random_state(const State& state, c10::Device device) {
  const auto cpu = state.at("cpu").tensor();
  const auto* other = device.is_cpu() ? nullptr : state.find(c10::DeviceTypeName(device.type(), true));
  if (other) set_state(at::globalContext().defaultGenerator(device), other->tensor());
  set_state(at::detail::getDefaultCPUGenerator(), cpu);
}

}  // namespace muster::runtime
