#include "comm/shared_tensor.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "comm/group.h"

namespace muster::comm {

at::Tensor try_shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options,
                            PeerAccess access) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  if (bytes == 0 || !options.device().is_cpu()) return {};
  const char* text = access == PeerAccess::write ? "results in shared memory" : "shared memory";
  const auto buffer = group.group()->share(bytes, access, {.text = text, .source = Source::library});
  if (!buffer) return {};
  return at::from_blob(
      buffer->parts[static_cast<std::size_t>(group.rank())], {elements}, [buffer](void*) {}, options);
}

at::Tensor shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options,
                        PeerAccess access) {
  const at::Tensor shared = try_shared_zeros(group, elements, options, access);
  return shared.defined() ? shared : at::zeros({elements}, options);
}

std::size_t part_alignment(const Communicator& group) { return group.group()->part_alignment(); }

SharedTensor try_shared_tensor(const Communicator& group, int64_t elements, const at::TensorOptions& options) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  if (bytes == 0 || !options.device().is_cpu() || part_alignment(group) == 0) return {};
  const auto buffer = group.group()->share(bytes, PeerAccess::read_contiguous,
                                           {.text = "one copy in shared memory", .source = Source::library});
  if (!buffer) return {};
  const auto tensor = [&](std::byte* data, int64_t count) {
    return at::from_blob(
        data, {count}, [buffer](void*) {}, options);
  };
  return {tensor(buffer->row, elements * group.size()),
          tensor(buffer->parts[static_cast<std::size_t>(group.rank())], elements)};
}

std::shared_ptr<SharedBuffer> LiveBuffers::of(const at::Tensor& tensor) const {
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::less_equal<const std::byte*> up_to;
  for (const auto& known : buffers_)
    if (auto buffer = known.lock()) {
      const std::byte* part = buffer->parts[rank_];
      if (up_to(part, begin) && up_to(begin + tensor.nbytes(), part + buffer->bytes)) return buffer;
    }
  return nullptr;
}

}  // namespace muster::comm
