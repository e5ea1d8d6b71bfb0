#include "random_state.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "device/device.h"

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

/// Other devices of this kind: a program may use their generators as well.
std::vector<c10::Device> others_of(c10::Device device) {
  std::vector<c10::Device> others;
  const int count = device::is_accelerator(device.type()) ? device::count() : 0;
  for (int i = 0; i < count; ++i)
    if (i != device.index()) others.emplace_back(device.type(), static_cast<c10::DeviceIndex>(i));
  return others;
}

}  // namespace

State random_state(c10::Device device) {
  State state = State::Map{{"cpu", state_of(at::detail::getDefaultCPUGenerator())}};
  if (device.is_cpu()) return state;
  state.set(c10::DeviceTypeName(device.type(), true), state_of(at::globalContext().defaultGenerator(device)));
  State others = State::Map{};
  for (const auto other : others_of(device))
    others.set(std::to_string(other.index()), state_of(at::globalContext().defaultGenerator(other)));
  if (!others.map().empty()) state.set("others", std::move(others));
  return state;
}

void set_random_state(const State& state, c10::Device device) {
  const auto cpu = state.at("cpu").tensor();
  const auto* own = device.is_cpu() ? nullptr : state.find(c10::DeviceTypeName(device.type(), true));
  if (own) {
    set_state(at::globalContext().defaultGenerator(device), own->tensor());
    const auto* saved = state.find("others");
    for (const auto other : others_of(device))
      if (const auto* one = saved ? saved->find(std::to_string(other.index())) : nullptr)
        set_state(at::globalContext().defaultGenerator(other), one->tensor());
  }
  set_state(at::detail::getDefaultCPUGenerator(), cpu);
}

}  // namespace muster::runtime
