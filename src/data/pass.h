#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batch_order.h"
#include "device_mover.h"
#include "muster/comm/communicator.h"
#include "muster/data/detail/loader_state.h"
#include "muster/data/shard_spec.h"
#include "worker_queue.h"

namespace muster::data {

class OpenPass;

/// The progress of a loader as seen by its user.
struct Progress {
  int64_t epoch = 0;
  bool last = false;        ///< the current batch is the last one of the pass
  int64_t next_start = 0;   ///< first batch of the next pass
  int64_t next_offset = 0;  ///< BatchSharding::offset of the next pass
  std::string next_state;   ///< state of a stateful stream at next_start; empty: skip to it
  int64_t offset = 0;       ///< BatchSharding::offset of the pass of `position`
  int64_t position = 0;
  OpenPass* running = nullptr;
  StepSamples samples;            ///< sample counts of the current or last batch
  std::string state;              ///< state of a stateful stream at `position`
  bool warns_of_repeats = false;  ///< this rank has yet to log the warning about repeated samples
};

/// A pass that knows the dataset indices of the samples in its current batch.
class IndexedPass : public Pass {
 public:
  virtual std::vector<int64_t> indices() const = 0;
};

/// Base class of all passes: keeps its loader's progress.
class OpenPass : public IndexedPass {
 public:
  explicit OpenPass(std::shared_ptr<Progress> progress);
  /// Called when another pass begins: from now on next() throws.
  void end() noexcept;
  /// Empty if another rank reads.
  std::vector<int64_t> indices() const override { return {}; }

 protected:
  /// Ends threads and releases data.
  virtual void stop() noexcept = 0;
  /// Throws: UsageError (MU106) if the pass has ended.
  void require_open() const;
  void deliver(const MadeBatch& made);
  BatchBox* finish();
  int64_t position() const { return position_; }

 private:
  bool ended_ = false;
  int64_t epoch_;
  bool finished_ = false;
  int64_t position_;
  std::shared_ptr<Progress> progress_;
};

/// The parts from which a pass is made.
struct PassPlan {
  device::Stream copying;                           ///< stream on which batches are copied to the device
  std::vector<std::shared_ptr<BatchMaker>> makers;  ///< one maker per worker, or a single one without workers
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
  std::vector<int64_t> indices() const override { return current_.indices; }

 private:
  std::optional<MadeBatch> fetch();
  void release();
  void stop() noexcept override;

  std::optional<MadeBatch> ahead_;
  BatchContent content_;
  BatchCopy copy_, copy_ahead_;  // copies of current_ and ahead_
  MadeBatch current_;
  DeviceMover mover_;
  PassPlan plan_;
  std::unique_ptr<BatchBox> spare_;
  std::unique_ptr<WorkerQueue> workers_;
};

/// A pass in which rank 0 reads the samples of all ranks: one scatter per step, and none after the last. If rank 0
/// fails to read, every rank gets the failure in place of its batch.
class DispatchedPass : public OpenPass {
 public:
  /// On ranks other than 0, only the maker of `plan` is used, for the type of the batch.
  /// Requires: plan.shard.group is set, and the pass begins at the same batch on all ranks.
  DispatchedPass(PassPlan plan, const std::shared_ptr<Progress>& progress);
  ~DispatchedPass() override;
  /// Collective.
  BatchBox* next() override;

 private:
  BatchBox* read_and_send();
  BatchBox* receive();
  void stop() noexcept override;

  std::unique_ptr<BatchBox> box_;
  comm::Communicator group_;
  std::shared_ptr<BatchMaker> maker_;
  DeviceMover mover_;
  bool over_ = false;               // no rank gets another batch
  std::shared_ptr<Progress> read_;  // progress of reading on rank 0, in parts of steps
  std::unique_ptr<RunningPass> reading_;
};

}  // namespace muster::data
