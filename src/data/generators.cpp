#include "data/generators.h"

#include <mutex>

#include <ATen/Context.h>

#include "comm/agreement.h"
#include "muster/base/error.h"

namespace muster::data {

void broadcast_state(const comm::Communicator& group, at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  const auto state = generator.get_state().clone();
  group.internal("the state of a generator").broadcast(state, 0);
  generator.set_state(state);
}

uint64_t shared_seed(const comm::Communicator& group, const std::string& order, uint64_t seed) {
  auto all = group.internal("comparing loaders").all_gather_bytes(std::to_string(seed) + ":" + order);
  const auto seed_of_rank_0 = std::stoull(all.front());
  for (auto& text : all) text.erase(0, text.find(':') + 1);
  if (const auto found = comm::first_difference(all))
    throw ConfigError(
        "MU115", "ranks prepare different loaders: rank 0 has " + found->first + "; rank " +
                     std::to_string(found->rank) + " has " + found->other +
                     ": give all ranks the same dataset and options, and prepare loaders in the same order on each");
  return seed_of_rank_0;
}

void synchronize_generators(const comm::Communicator& group, c10::Device device, const SyncedGenerators& which) {
  if (which.cpu) broadcast_state(group, at::globalContext().defaultGenerator(at::kCPU));
  if (which.device && !device.is_cpu()) broadcast_state(group, at::globalContext().defaultGenerator(device));
}

}  // namespace muster::data
