#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace muster {

/// Which generators of LibTorch get the state that they have on rank 0 whenever a pass begins. What a loader draws itself needs none
/// of them: it is in step anyway.
struct SyncedGenerators {
  bool cpu = false;      ///< the default CPU generator
  bool device = false;   ///< the default generator of the loader's device, if that is none of the CPU
};

/// How a DataLoader makes batches.
struct DataLoaderOptions {
  int64_t batch_size = 1;     ///< samples in a batch: of each rank, or of all ranks together with split_batches
  bool dispatch_batches = false;  ///< rank 0 alone reads the data and sends each rank its batches; otherwise every rank reads what it needs
  bool drop_last = false;     ///< leave out what fills no whole batch on every rank (with a batch sampler: whole step)
  bool even_batches = true;   ///< pad with samples from the start of the pass, so that all ranks get equally many and equal batches
  bool pin_memory = true;     ///< batches for an accelerator are made in pinned memory
  int64_t prefetch = 2;       ///< batches made ahead, per worker
  bool rank_in_sample_seed = false;  ///< samples' random numbers differ from rank to rank, even of the same sample
  std::optional<uint64_t> seed = {};  ///< of shuffling and of samples; unset: the seed of the default generator at construction
  bool shuffle = false;       ///< a new order in every epoch, from (seed, epoch) alone
  bool split_batches = false; ///< cut each batch into one piece per rank
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for a batch from the workers
  int workers = 0;            ///< threads that make batches; 0: the thread that asks
};

}  // namespace muster
