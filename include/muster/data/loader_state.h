#pragma once

#include "muster/data/batch_maker.h"
#include "muster/data/options.h"
#include "muster/data/sampler.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace muster::data {

/// What a rank's place in the job makes of a loader.
struct ShardSpec {
  at::Device device = at::kCPU;             ///< batches are moved there ahead of use
  std::optional<bool> even_batches = {};    ///< unset: as the loader's options say
  bool non_blocking = true;                 ///< copies from pinned memory overlap with computing
  int rank = 0;
  std::optional<uint64_t> seed = {};        ///< used where the options name none; the same on all ranks
  std::optional<bool> split_batches = {};   ///< unset: as the loader's options say
  int world_size = 1;
};

/// One run over this rank's batches. Ending it ends its threads.
/// Thread safety: one thread at a time.
class Pass {
 public:
  virtual ~Pass() = default;
  /// The next batch, which stays valid until the next call; nullptr at the end.
  /// Throws: DatasetError; Error (MU105) if no batch came in time; UsageError (MU106) once another pass has begun.
  virtual BatchBox* next() = 0;
};

/// The state that the copies of a DataLoader share. Thread safety: one thread at a time.
class LoaderState {
 public:
  /// Throws: ConfigError (MU107) for options that make no sense or contradict each other.
  LoaderState(std::shared_ptr<BatchMaker> maker, std::optional<AnySampler> sampler, const DataLoaderOptions& options,
              const ShardSpec& shard = {});
  ~LoaderState();

  std::shared_ptr<LoaderState> distributed(const ShardSpec& shard) const;
  std::unique_ptr<Pass> begin_pass();

  int64_t batch_size() const;
  int64_t dataset_size() const;
  std::string describe() const;
  bool end_of_dataloader() const;
  int64_t epoch() const;
  const DataLoaderOptions& options() const;
  int64_t position() const;
  int64_t real_samples() const;
  int64_t remainder() const;
  void seek(int64_t batch);
  void set_epoch(int64_t epoch);
  const ShardSpec& shard() const;
  int64_t size() const;
  int64_t total_batch_size() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace muster::data
