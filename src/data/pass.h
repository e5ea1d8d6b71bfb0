#pragma once

#include "muster/data/loader_state.h"

#include "device_mover.h"
#include "index_order.h"
#include "worker_queue.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace muster::data {

class RunningPass;

/// Where a loader stands, as its user sees it.
struct Progress {
  int64_t epoch = 0;
  bool last = false;            ///< the batch in hand is the last one
  int64_t next_start = 0;       ///< where the next pass begins
  int64_t position = 0;
  int64_t real_samples = 0;
  RunningPass* running = nullptr;
};

/// A pass over the batches [progress.next_start, size).
class RunningPass : public Pass {
 public:
  struct Plan {
    std::vector<std::shared_ptr<BatchMaker>> makers;  ///< one per worker; a single one with no workers
    DataLoaderOptions options;
    std::shared_ptr<IndexOrder> order;
    bool pinned = false;
    EpochRandom random;
    ShardSpec shard;
    int64_t size = 0;
  };
  RunningPass(Plan plan, std::shared_ptr<Progress> progress);
  ~RunningPass() override;

  BatchBox* next() override;
  /// Another pass begins: ends the threads; next() is refused from now on.
  void end() noexcept;

 private:
  MadeBatch fetch();
  BatchBox* hand_out(MadeBatch made);
  BatchBox* finish();
  void release();

  std::optional<MadeBatch> ahead_;
  MadeBatch current_;
  bool ended_ = false;
  bool finished_ = false;
  std::vector<int64_t> indices_;
  DeviceMover mover_;
  Plan plan_;
  int64_t position_;
  std::shared_ptr<Progress> progress_;
  std::unique_ptr<BatchBox> spare_;
  std::unique_ptr<WorkerQueue> workers_;
};

}  // namespace muster::data
