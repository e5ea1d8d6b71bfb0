#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "log_book.h"
#include "muster/data/detail/loader_state.h"
#include "muster/tree/state.h"

namespace muster::trainer {

/// The position at which the open window of accumulated gradients began. If a checkpoint cannot restore the gradients
/// of the window, training continues from here.
struct WindowBegin {
  int64_t batches = 0, total_batches = 0;
  std::vector<data::LoaderPosition> loaders = {};
  std::optional<LogBook> book = {};  ///< log at the beginning of the window; empty if no window was noted

  State state_dict() const;
  void load_state_dict(const State& state, LatestMetrics& latest);
};

/// The batches whose gradients go into one update.
struct AccumulationWindow {
  bool begins = true;     ///< the next training batch is the first of the window
  bool has_loss = false;  ///< some batch of the window had a loss on this rank
  WindowBegin begin = {};
};

}  // namespace muster::trainer
