#include "shared_buffer.h"

#include <functional>

namespace muster::comm {

void LiveBuffers::add(const std::shared_ptr<SharedBuffer>& buffer) {
  std::erase_if(buffers_, [](const auto& known) { return known.expired(); });
  buffers_.push_back(buffer);
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
