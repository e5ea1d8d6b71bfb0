#include "muster/parallel/detail/capabilities.h"

#include "muster/parallel/detail/managed_model.h"

namespace muster::parallel {

std::vector<ParameterShard> shards_of(ManagedModel& model) {
  auto* sharded = model.sharded_parameters();
  return sharded ? sharded->shards() : std::vector<ParameterShard>{};
}

at::ScalarType stored_dtype(ManagedModel& model, const at::Tensor& tensor) {
  const auto* sharded = model.sharded_parameters();
  return sharded ? sharded->stored_dtype(tensor) : tensor.scalar_type();
}

}  // namespace muster::parallel
