#pragma once

#include <deque>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "batch_order.h"
#include "device/order.h"
#include "muster/comm/communicator.h"
#include "muster/data/detail/batch_maker.h"
#include "muster/data/detail/loader_state.h"
#include "muster/data/sample_split.h"
#include "worker_queue.h"

namespace muster::data {

/// A copy of a batch to the device, possibly still in progress.
struct BatchCopy {
  std::vector<at::Tensor> sources;  ///< source tensors in batch order; undefined where their memory must not be reused
  device::Event done;
};

/// Copies batches to an accelerator on a separate stream, so that copies overlap with computation. The copies start
/// from pinned memory, which is reused when they are done. Does nothing for the CPU.
/// Thread safety: one thread at a time. Why: docs/decisions/0144-batches-on-a-device.md.
class DeviceMover {
 public:
  /// `stream`: stream of the copies; nullopt for the CPU. `pinned`: copy batches in other host memory to pinned memory
  /// first.
  DeviceMover(at::Device device, device::Stream stream, bool pinned, bool non_blocking);
  bool active() const { return stream_.has_value(); }
  /// Starts copying after `made`. The box then holds the device tensors; use them only after finish().
  BatchCopy start(BatchBox& box, const device::Event& made = {});
  /// Makes the device's current stream wait for the copies; the calling thread does not wait.
  void finish(BatchBox& box, const BatchCopy& copy);
  /// The calling thread waits for copies from pinned memory that a dataset kept: the dataset may write to it when it is
  /// asked for the next batch.
  void wait_for_given();
  /// Keeps the memory from which a batch was copied, for reuse. Requires: nobody uses the box any more.
  void keep(std::unique_ptr<BatchBox> box, BatchCopy copy);
  /// A box whose kept memory may be reused; nullptr if no copy is known to be done.
  std::unique_ptr<BatchBox> take();

 private:
  struct Kept {
    std::unique_ptr<BatchBox> box;
    device::Event done;
  };

  at::Device device_;
  device::Event last_copy_;  // last copy from pinned memory that a dataset kept
  std::deque<Kept> kept_;    // kept boxes, in the order of their copies
  bool non_blocking_;
  bool pinned_;
  device::Stream stream_;
};

class OpenPass;

/// The progress of a loader as seen by its user.
struct Progress {
  int64_t epoch = 0;
  bool last = false;        ///< the current batch is the last one of the pass
  int64_t next_start = 0;   ///< first batch of the next pass
  int64_t next_offset = 0;  ///< BatchSplit::offset of the next pass
  std::string next_state;   ///< state of a stateful stream at next_start; empty: skip to it
  int64_t offset = 0;       ///< BatchSplit::offset of the pass of `position`
  int64_t position = 0;
  OpenPass* running = nullptr;
  StepSamples samples;            ///< sample counts of the current or last batch
  std::string state;              ///< state of a stateful stream at `position`
  bool warns_of_repeats = false;  ///< this rank has yet to log the warning about repeated samples
};

/// Base class of all passes: keeps its loader's progress.
class OpenPass : public Pass {
 public:
  /// `trace` records how long the program waits for batches; it may be null.
  OpenPass(std::shared_ptr<Progress> progress, std::shared_ptr<Trace> trace);
  BatchBox* next() final;
  /// Called when another pass begins: from now on next() throws.
  void end() noexcept;

 protected:
  /// Ends threads and releases data.
  virtual void stop() noexcept = 0;
  /// The implementation of next() in a pass that has not ended.
  virtual BatchBox* advance() = 0;
  void deliver(const MadeBatch& made);
  BatchBox* finish();
  int64_t position() const { return position_; }

 private:
  bool ended_ = false;
  int64_t epoch_;
  bool finished_ = false;
  int64_t position_;
  std::shared_ptr<Progress> progress_;
  std::shared_ptr<Trace> trace_;
};

/// The parts from which a pass is made.
struct PassPlan {
  device::Stream copying;                           ///< stream on which batches are copied to the device
  std::vector<std::shared_ptr<BatchMaker>> makers;  ///< one maker per worker, or a single one without workers
  DataLoaderOptions options;
  std::shared_ptr<BatchOrder> order;
  bool pinned = false;
  EpochRandom random;
  SampleSplit split;
};

/// A pass over the batches of this rank from progress.next_start on.
class RunningPass : public OpenPass {
 public:
  RunningPass(PassPlan plan, std::shared_ptr<Progress> progress);
  ~RunningPass() override;
  std::vector<int64_t> indices() const override { return current_.indices; }

 private:
  BatchBox* advance() override;
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
  /// Requires: plan.split.group is set, and the pass begins at the same batch on all ranks.
  DispatchedPass(PassPlan plan, const std::shared_ptr<Progress>& progress);
  ~DispatchedPass() override;

 private:
  /// Collective.
  BatchBox* advance() override;
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
