#include "muster/runtime/detail/prepare.h"

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/data/sample_split.h"
#include "muster/runtime/loader_preparation.h"
#include "muster/runtime/placement.h"
#include "runtime_state.h"

namespace muster::runtime {

void require_made(const void* object) {
  if (!object)
    throw ConfigError("MU326",
                      "a function given to prepare returned an empty pointer; return the optimizer or the scheduler "
                      "that it makes");
}

std::vector<bool> moves_of(const PrepareOptions& options, std::size_t objects) {
  const auto& answers = options.move_to_device.values();
  if (answers.size() != 1 && answers.size() != objects)
    throw ConfigError("MU566", formatted("move_to_device has {} for {}: give one for all objects, or one for each, in "
                                         "their order",
                                         counted(static_cast<std::int64_t>(answers.size()), "answer"),
                                         counted(static_cast<std::int64_t>(objects), "object")));
  return answers.size() == 1 ? std::vector<bool>(objects, answers[0]) : answers;
}

}  // namespace muster::runtime

namespace muster {

std::shared_ptr<data::LoaderState> prepare_loader(const Runtime& runtime, const data::LoaderState& loader,
                                                  const PrepareLoaderOptions& options) {
  if (options.filler_batches && options.even_batches.value_or(false))
    throw ConfigError("MU432",
                      "a loader is to be prepared with even_batches, which repeat samples, and with filler_batches, "
                      "which are there instead of repeated samples: set one of the two");
  auto& state = runtime::state_of(runtime);
  auto split = state.split_of(loader);
  if (options.even_batches) split.even_batches = options.even_batches;
  if (!options.move_to_device) split.device = at::kCPU;
  split.filler_batches = options.filler_batches;
  split.in_order = options.in_order;
  return state.distribute(loader, split, options.place);
}

}  // namespace muster
