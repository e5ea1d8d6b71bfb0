#pragma once

#include "muster/dist/communicator.h"

#include "device_mover.h"
#include "pass.h"

#include <memory>
#include <string>
#include <vector>

namespace muster::data {

/// A pass whose samples rank 0 reads for all: one scatter per step, and none after the last. A failure of rank 0's reading
/// reaches every rank in place of the batch.
class DispatchedPass : public OpenPass {
 public:
  /// `plan` is used on rank 0 only; elsewhere its maker only knows the batch's type.
  /// Requires: plan.shard.group is set, and the pass begins at the same batch on all ranks.
  DispatchedPass(PassPlan plan, std::shared_ptr<Progress> progress);
  ~DispatchedPass() override;
  /// Collective.
  BatchBox* next() override;

 private:
  BatchBox* read_and_send();
  BatchBox* receive();
  void stop() noexcept override;

  std::unique_ptr<BatchBox> box_;
  dist::Communicator group_;
  std::shared_ptr<BatchMaker> maker_;
  DeviceMover mover_;
  bool over_ = false;                      // no rank gets anything any more
  std::shared_ptr<Progress> read_;         // rank 0: how far reading is, counted in parts of steps
  std::unique_ptr<RunningPass> reading_;
};

}  // namespace muster::data
