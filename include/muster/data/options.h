#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace muster {

/// How a DataLoader makes batches.
struct DataLoaderOptions {
  int64_t batch_size = 1;     ///< samples in a batch: of each rank, or of all ranks together with split_batches
  bool drop_last = false;     ///< leave out what fills no whole batch on every rank (with a batch sampler: whole step)
  bool even_batches = true;   ///< pad with samples from the start of the pass, so that all ranks get equally many and equal batches
  bool pin_memory = true;     ///< batches for an accelerator are made in pinned memory
  int64_t prefetch = 2;       ///< batches made ahead, per worker
  std::optional<uint64_t> seed = {};  ///< of shuffling and of samples; unset: the seed of the default generator at construction
  bool shuffle = false;       ///< a new order in every epoch, from (seed, epoch) alone
  bool split_batches = false; ///< cut each batch into one piece per rank
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for a batch from the workers
  int workers = 0;            ///< threads that make batches; 0: the thread that asks
};

}  // namespace muster
