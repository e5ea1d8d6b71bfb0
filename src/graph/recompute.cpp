#include "muster/graph/recompute.h"

#include <unordered_map>

#include <ATen/core/grad_mode.h>

#include "base/mutex.h"
#include "graph/blocks.h"
#include "graph/recording.h"

namespace muster {
namespace {

/// Whether a scope of this module was there before. A module that no shared_ptr owns is never known.
bool is_known(const torch::nn::Module& module) {
  static base::Mutex mutex;
  static std::unordered_map<const torch::nn::Module*, std::weak_ptr<const torch::nn::Module>> modules;
  const base::Lock lock(mutex);
  std::erase_if(modules, [](const auto& entry) { return entry.second.expired(); });
  return !modules.emplace(&module, module.weak_from_this()).second;
}

}  // namespace

RecomputeScope::RecomputeScope(const torch::nn::Module& module, const RecomputeOptions& options) {
  if (!options.on() || !at::GradMode::is_enabled()) return;
  if (options.budget_mib != 0)
    throw ConfigError("MU589",
                      "recompute.budget_mib needs a prepared model, which measures its blocks in the first "
                      "step: choose the blocks of a RecomputeScope by name, `every` or `keep`");
  graph::install_recorder();
  auto own = options;
  const bool again = is_known(module);
  own.check &= !again;
  blocks_ = std::make_unique<graph::Blocks>(module, own, tree::repeated_modules(module), /*warns=*/!again);
  recording_ = std::make_unique<graph::Recording>(*blocks_);
}

RecomputeScope::~RecomputeScope() = default;

}  // namespace muster
