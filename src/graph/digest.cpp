#include "graph/digest.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>

#include "format/checksum.h"
#include "hook/interceptor.h"
#include "hook/watched_storage.h"

namespace muster::graph {

std::optional<uint64_t> digest_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_meta() ||
      tensor.is_quantized() || hook::has_key(tensor) || tensor.numel() == 0)
    return std::nullopt;
  const at::NoGradGuard no_grad;
  const hook::InterceptorGuard unrecorded(hook::Priority::recorder, false);
  const auto values = tensor.detach().resolve_conj().resolve_neg().contiguous();
  if (values.is_cpu()) return format::checksum_of({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  const auto words = values.view({-1}).view(at::kByte);
  const bool whole = values.nbytes() % 4 == 0 && values.storage_offset() * values.itemsize() % 4 == 0;
  return static_cast<uint64_t>((whole ? words.view(at::kInt) : words).sum(at::kLong).item<int64_t>());
}

}  // namespace muster::graph
