#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_mover.h"
#include "muster/comm/communicator.h"
#include "pass.h"

namespace muster::data {

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
