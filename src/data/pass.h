#pragma once

#include "muster/data/loader_state.h"

#include "batch_order.h"
#include "device_mover.h"
#include "worker_queue.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::data {

class OpenPass;

/// Where a loader stands, as its user sees it.
struct Progress {
  int64_t epoch = 0;
  bool last = false;            ///< the batch in hand is the last one
  int64_t next_start = 0;       ///< where the next pass begins
  std::string next_state;       ///< of a stateful stream there; empty if it is to be found by skipping
  int64_t position = 0;
  OpenPass* running = nullptr;
  StepSamples samples;          ///< of the batch in hand or the last one
  std::string state;            ///< of a stateful stream at `position`
  bool tells_repeats = false;   ///< nobody has been told yet that samples are repeated, and this rank is to say it
};

/// What all passes have in common: they keep their loader's progress.
class OpenPass : public Pass {
 public:
  explicit OpenPass(std::shared_ptr<Progress> progress);
  /// Another pass begins: next() is refused from now on.
  void end() noexcept;

 protected:
  /// Ends threads and lets go of data.
  virtual void stop() noexcept = 0;
  /// Throws: UsageError (MU106) if the pass has ended.
  void require_open() const;
  void hand_out(const MadeBatch& made);
  BatchBox* finish();
  int64_t position() const { return position_; }

 private:
  bool ended_ = false;
  int64_t epoch_;
  bool finished_ = false;
  int64_t position_;
  std::shared_ptr<Progress> progress_;
};

/// What a pass is made from.
struct PassPlan {
  std::vector<std::shared_ptr<BatchMaker>> makers;  ///< one per worker; a single one with no workers
  DataLoaderOptions options;
  std::shared_ptr<BatchOrder> order;
  bool pinned = false;
  EpochRandom random;
  ShardSpec shard;
};

/// A pass over the batches of this rank from progress.next_start on.
class RunningPass : public OpenPass {
 public:
  RunningPass(PassPlan plan, std::shared_ptr<Progress> progress);
  ~RunningPass() override;
  BatchBox* next() override;

 private:
  std::optional<MadeBatch> fetch();
  void release();
  void stop() noexcept override;

  std::optional<MadeBatch> ahead_;
  BatchContent content_;
  MadeBatch current_;
  DeviceMover mover_;
  PassPlan plan_;
  std::unique_ptr<BatchBox> spare_;
  std::unique_ptr<WorkerQueue> workers_;
};

}  // namespace muster::data
