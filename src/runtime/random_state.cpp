#include "runtime/random_state.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "comm/agreement.h"
#include "comm/piggyback.h"
#include "data/random.h"
#include "device/device.h"
#include "format/checksum.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

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

/// Number of steps that are checked. Programs with two optimizers may draw only between every other step.
constexpr int kSteps = 10;

/// A digest of the state of the CPU's generator, never 0. get_state() returns a copy, so the generator does not change.
uint64_t digest_of_state() {
  const auto state = state_of(at::detail::getDefaultCPUGenerator());
  return format::checksum_of({static_cast<const char*>(state.const_data_ptr()), state.nbytes()}) | 1;
}

constexpr const char* kUndefined = "undefined";

std::string described(const std::vector<at::Generator>& generators) {
  std::string text;
  for (const auto& generator : generators)
    text += (text.empty() ? "" : ", ") + (generator.defined() ? generator.device().str() : kUndefined);
  return text.empty() ? "none" : text;
}

/// Compares before any state is sent, so that no rank waits for a state that another does not send.
void compare(const comm::Communicator& group, const std::vector<at::Generator>& generators) {
  const auto all = group.internal("comparing generators").all_gather_bytes(described(generators));
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].find(kUndefined) != std::string::npos)
      throw UsageError("MU329", formatted("synchronize_rng_states got an undefined generator on rank {} ({}); make it "
                                          "first, such as by at::make_generator<at::CPUGeneratorImpl>()",
                                          rank, all[rank]));
  if (const auto found = comm::first_difference(all))
    throw UsageError("MU328", formatted("ranks synchronise different generators: rank 0 those of {}, rank {} those of "
                                        "{}; give all ranks the same kinds and generators, in the same order",
                                        found->first, found->rank, found->other));
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

bool GeneratorCheck::note_step() {
  if (group_.size() == 1 || steps_ == kSteps) return false;
  ++steps_;
  const uint64_t now = digest_of_state();
  const auto heard = comm::attached_piggybacks(group_);
  const bool found = last_digest_ != 0 && now != last_digest_ &&
                     std::all_of(heard.begin(), heard.end(), [&](uint64_t value) { return value == last_digest_; });
  if (found) steps_ = kSteps;
  last_digest_ = steps_ == kSteps ? 0 : now;
  comm::attach_piggyback(group_, last_digest_);
  return found;
}

void synchronize_rng_states(const comm::Communicator& group, c10::Device device, const SyncedGenerators& kinds,
                            std::vector<at::Generator> generators) {
  if (kinds.device && !device.is_cpu())
    generators.insert(generators.begin(), at::globalContext().defaultGenerator(device));
  if (kinds.cpu) generators.insert(generators.begin(), at::globalContext().defaultGenerator(at::kCPU));
  compare(group, generators);
  for (const auto& generator : generators) data::broadcast_state(group, generator);
}

}  // namespace muster::runtime
