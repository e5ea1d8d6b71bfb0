#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "muster/checkpoint/weights.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

/// The weights of a model, for a file that one rank writes: sharded tensors are gathered one at a time.
class WeightStream {
 public:
  WeightStream(const PreparedModel& model, comm::Communicator group);

  /// Calls `write` on the main rank with all tensors and the function that returns their values; meanwhile the other
  /// ranks send their shards.
  /// Collective.
  void run(const std::function<void(const NamedTensors&, const ValueOf&)>& write);

 private:
  void send_shards();
  std::vector<at::Tensor> pieces(size_t i) const;
  at::Tensor value_of(const at::Tensor& tensor) const;
  int64_t agree(int64_t next) const;

  comm::Communicator group_;
  NamedTensors tensors_;                              // all tensors, with a placeholder for each sharded parameter
  std::vector<parallel::ParameterShard> shards_;      // shard of each sharded parameter
  std::unordered_map<const void*, size_t> shard_of_;  // index in shards_, by the placeholder's memory
};

}  // namespace muster::runtime
