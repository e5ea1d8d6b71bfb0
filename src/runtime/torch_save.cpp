#include "hook/watched_storage.h"
#include "muster/runtime.h"

namespace muster::runtime {

void prepare_for_archive(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) hook::require_values(parameter, "torch::save");
}

}  // namespace muster::runtime
