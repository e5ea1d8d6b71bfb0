#include "rank_agreement.h"

#include <ATen/Context.h>

#include "muster/base/error.h"
#include "muster/data/detail/generators.h"

namespace muster::data {

uint64_t agree(const comm::Communicator& group, const std::string& said, uint64_t seed) {
  const auto all = group.as_library("comparing loaders").all_gather_bytes(std::to_string(seed) + ":" + said);
  auto text = [&](size_t rank) { return all[rank].substr(all[rank].find(':') + 1); };
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (text(rank) != text(0))
      throw ConfigError(
          "MU115", "ranks prepare different loaders: rank 0 has " + text(0) + "; rank " + std::to_string(rank) +
                       " has " + text(rank) +
                       ": give all ranks the same data set and options, and prepare loaders in the same order on each");
  return std::stoull(all.front());
}

void synchronize_generators(const comm::Communicator& group, c10::Device device, const SyncedGenerators& which) {
  if (which.cpu) broadcast_state(group, at::globalContext().defaultGenerator(at::kCPU));
  if (which.device && !device.is_cpu()) broadcast_state(group, at::globalContext().defaultGenerator(device));
}

}  // namespace muster::data
