#include "muster/runtime/placement.h"

#include <cstdint>
#include <deque>
#include <utility>

#include "base/shown.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "runtime_state.h"

namespace muster::runtime {

PlacementScope::PlacementScope(RuntimeState& state, const PrepareOptions& options, const std::vector<bool>& placed)
    : state_(state) {
  const auto& answers = options.move_to_device.values();
  if (answers.size() != 1 && answers.size() != placed.size())
    throw ConfigError("MU566", formatted("move_to_device has {} for {}: give one for all objects, or one for each, in "
                                         "their order",
                                         counted(static_cast<std::int64_t>(answers.size()), "answer"),
                                         counted(static_cast<std::int64_t>(placed.size()), "object")));
  std::deque<bool> moves;
  for (size_t i = 0; i < placed.size(); ++i)
    if (placed[i]) moves.push_back(answers[answers.size() == 1 ? 0 : i]);
  state_.set_move_to_device(std::move(moves));
}

PlacementScope::~PlacementScope() { state_.set_move_to_device({}); }

}  // namespace muster::runtime
