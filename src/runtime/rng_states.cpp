#include "runtime/rng_states.h"

#include <string>

#include <ATen/Context.h>

#include "comm/agreement.h"
#include "data/generators.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::runtime {
namespace {

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

void synchronize_rng_states(const comm::Communicator& group, c10::Device device, const SyncedGenerators& kinds,
                            std::vector<at::Generator> generators) {
  if (kinds.device && !device.is_cpu())
    generators.insert(generators.begin(), at::globalContext().defaultGenerator(device));
  if (kinds.cpu) generators.insert(generators.begin(), at::globalContext().defaultGenerator(at::kCPU));
  compare(group, generators);
  for (const auto& generator : generators) data::broadcast_state(group, generator);
}

}  // namespace muster::runtime
