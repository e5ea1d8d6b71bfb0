#include "muster/comm/detail/shared_tensor.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "comm/group.h"
#include "comm/shared_memory/shared_buffer.h"

namespace muster::comm {

at::Tensor shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  if (bytes > 0 && options.device().is_cpu()) {
    const Tag tag{.label = "memory for gradients", .source = Source::library};
    if (auto buffer = group.group()->share(bytes, tag)) {
      std::byte* own = buffer->parts[static_cast<std::size_t>(group.rank())];
      return at::from_blob(
          own, {elements}, [buffer = std::move(buffer)](void*) {}, options);
    }
  }
  return at::zeros({elements}, options);
}

}  // namespace muster::comm
