#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "log_book.h"
#include "muster/data/detail/loader_state.h"
#include "muster/tree/state.h"

namespace muster::trainer {

/// Where the open window of accumulated gradients began. Where a checkpoint cannot give its gradients back, training
/// goes on from here.
struct WindowBegin {
  int64_t batches = 0, total_batches = 0;
  std::vector<data::LoaderPosition> loaders = {};
  std::optional<LogBook> book = {};  ///< empty: no window was noted

  State state_dict() const;
  void load_state_dict(const State& state, LatestMetrics& latest);
};

/// The batches whose gradients one update takes.
struct AccumulationWindow {
  bool begins = true;     ///< the next training batch is its first
  bool has_loss = false;  ///< some batch of it had one, on this rank
  WindowBegin begin = {};
};

}  // namespace muster::trainer
