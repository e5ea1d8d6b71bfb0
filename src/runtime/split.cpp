#include "muster/runtime/split.h"

#include <algorithm>
#include <string>

#include <ATen/ops/cat.h>

#include "muster/base/error.h"

namespace muster::runtime {

SplitPart split_part(int64_t length, int rank, int world, const SplitOptions& options) {
  const int64_t each = length / world, more = length % world;
  SplitPart part{rank * each + std::min<int64_t>(rank, more), each + (rank < more), 0};
  if (options.apply_padding && length > 0) part.repeated = each + (more > 0) - part.count;
  return part;
}

at::Tensor split_tensor(const at::Tensor& tensor, const SplitPart& part) {
  const auto own = tensor.narrow(0, part.begin, part.count);
  if (part.repeated == 0) return own;
  auto shape = tensor.sizes().vec();
  shape[0] = part.repeated;
  return at::cat({own, tensor.narrow(0, tensor.size(0) - 1, 1).expand(shape)});
}

void check_length(std::optional<int64_t>& known, int64_t length) {
  if (known && *known != length)
    throw UsageError("MU184", "split_between_processes was given lists of " + std::to_string(*known) + " and of " +
                                  std::to_string(length) + " elements; what is split together must be equally long");
  known = length;
}

}  // namespace muster::runtime
