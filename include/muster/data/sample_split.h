#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include "muster/data/options.h"

namespace muster::comm {
class Communicator;
}
namespace muster {
class Trace;
}

namespace muster::data {

/// How the samples of a loader are split over the ranks of a job, and what one rank does with its part.
struct SampleSplit {
  at::Device device = at::kCPU;               ///< device that batches are moved to ahead of use
  std::optional<bool> dispatch_batches = {};  ///< unset: as in the loader's options
  std::optional<bool> even_batches = {};      ///< unset: as in the loader's options
  bool filler_batches = false;  ///< a rank without samples in the last step gets a batch that does not count
  /// The group of these ranks; needed to dispatch batches, to compare the ranks' loaders and to synchronise generators.
  std::shared_ptr<const comm::Communicator> group = {};
  bool in_order = false;     ///< in the order of the data, even if the loader's options shuffle
  bool non_blocking = true;  ///< copies from pinned memory overlap with computing
  int rank = 0;
  std::optional<uint64_t> seed = {};       ///< used if the options set none; equal on all ranks
  std::optional<bool> split_batches = {};  ///< unset: as in the loader's options
  SyncedGenerators synced_generators = {};
  std::shared_ptr<Trace> trace = {};  ///< records waits for batches
  int world_size = 1;
};

}  // namespace muster::data

namespace muster {
using data::SampleSplit;
}
