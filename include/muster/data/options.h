#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace muster {

/// The LibTorch generators that get rank 0's state whenever a pass begins. The loader's own random numbers do not use
/// them, and are equal on all ranks in any case.
struct SyncedGenerators {
  bool cpu = false;     ///< the default CPU generator
  bool device = false;  ///< the default generator of the loader's device, if that is not the CPU
};

/// How a DataLoader makes batches.
struct DataLoaderOptions {
  int64_t batch_size = 1;  ///< samples in a batch of each rank, or with split_batches of all ranks together
  bool dispatch_batches =
      false;  ///< rank 0 alone reads the data and sends each rank its batches; otherwise every rank reads what it needs
  bool drop_last = false;  ///< drop samples that do not fill a batch on every rank (batch sampler: a whole step)
  /// Pad with samples from the start of the pass, so that all ranks get the same number of batches, of equal size.
  bool even_batches = true;
  bool pin_memory = true;            ///< batches for an accelerator are made in pinned memory
  int64_t prefetch = 2;              ///< batches made ahead, per worker
  bool rank_in_sample_seed = false;  ///< the random numbers of a sample also depend on the rank
  /// Seed of the shuffle and of the samples' random numbers; unset: the seed of the default generator at construction.
  std::optional<uint64_t> seed = {};
  bool shuffle = false;        ///< a new order in every epoch, from (seed, epoch) alone
  bool split_batches = false;  ///< split each batch into one part per rank
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for a batch from the workers
  int workers = 0;                                               ///< threads that make batches; 0: the calling thread
};

}  // namespace muster
