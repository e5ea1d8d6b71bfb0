#include "muster/runtime/metrics.h"

#include <ATen/ops/cat.h>

#include "muster/base/error.h"
#include "muster/runtime/detail/values.h"

namespace muster::runtime {
namespace {

bool per_sample(const at::Tensor& tensor, const std::optional<StepRows>& step) {
  return step && tensor.dim() > 0 && tensor.size(0) == step->local;
}

at::Tensor with_rows(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.reshape({1}) : tensor; }

}  // namespace

at::Tensor gather_rows(const comm::Communicator& group, const at::Tensor& tensor, const std::optional<StepRows>& step) {
  const bool cut = per_sample(tensor, step);
  const auto all =
      !step || step->equal ? gather_tensor(group, tensor) : at::cat(group.all_gatherv(with_rows(tensor.detach())));
  return cut && all.size(0) > step->real ? all.narrow(0, 0, step->real) : all;
}

at::Tensor real_rows(const at::Tensor& tensor, const std::optional<StepRows>& step) {
  if (!tensor.defined()) return tensor;
  return per_sample(tensor, step) ? tensor.detach().narrow(0, 0, step->local_real) : with_rows(tensor.detach());
}

at::Tensor join_rows(const std::vector<at::Tensor>& parts) {
  for (const auto& part : parts)
    if (!part.defined()) return {};
  return at::cat(parts);
}

void NothingGathered::operator()(at::Tensor&) const {
  throw UsageError("MU254",
                   "gathered() of a collector was called where no rank has added anything since the last call, so it "
                   "has no tensor to give: "
                   "add() values first, or leave gathered() out where a loader has no batches");
}

}  // namespace muster::runtime
