#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_mover.h"
#include "muster/comm/communicator.h"
#include "pass.h"

namespace muster::data {

/// A pass whose samples rank 0 reads for all ranks: one scatter per step, and none after the last. If rank 0 fails to
/// read, every rank receives the failure in place of its batch.
class DispatchedPass : public OpenPass {
 public:
  /// `plan` is used on rank 0 only; on other ranks only its maker is used, for the type of the batch.
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
  std::shared_ptr<Progress> read_;  // rank 0: the progress of reading, counted in parts of steps
  std::unique_ptr<RunningPass> reading_;
};

}  // namespace muster::data
