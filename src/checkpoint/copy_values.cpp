#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "checkpoint/byte_copies.h"
#include "checkpoint/device_bytes.h"
#include "muster/checkpoint/state_dict.h"

namespace muster {
namespace {

/// Size in bytes from which copies bypass the caches. Smaller values may be in the caches already, or be used from
/// there soon.
constexpr std::size_t kBytesWorthStreaming = std::size_t{256} << 10;

bool takes_bytes(const at::Tensor& to, const at::Tensor& from) {
  return to.nbytes() >= kBytesWorthStreaming && to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         checkpoint::is_plain(to) && checkpoint::is_plain(from);
}

/// Whether the values are copied to a device through pinned memory.
bool goes_in_pieces(const at::Tensor& to, const at::Tensor& from) {
  return to.nbytes() >= kBytesWorthStreaming && checkpoint::is_on_device(to) &&
         to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && checkpoint::is_plain(from);
}

/// Whether a copy writes bytes that another one writes, or reads bytes that it writes itself.
bool overlap(std::vector<checkpoint::ByteCopy> copies) {
  std::sort(copies.begin(), copies.end(), [](const auto& a, const auto& b) { return a.to < b.to; });
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto& [to, from, bytes] = copies[i];
    if (i + 1 < copies.size() && to + bytes > copies[i + 1].to) return true;
    if (from < to + bytes && to < from + bytes) return true;
  }
  return false;
}

}  // namespace

void copy_values(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  const at::NoGradGuard no_grad;
  std::vector<checkpoint::ByteCopy> copies;
  for (const auto& [to, from] : pairs)
    if (takes_bytes(to, from))
      copies.push_back(
          {static_cast<char*>(to.mutable_data_ptr()), static_cast<const char*>(from.const_data_ptr()), to.nbytes()});
  const bool by_bytes = !overlap(copies);
  if (by_bytes) checkpoint::copy_bytes(copies);
  checkpoint::DeviceFiller filler;
  for (const auto& [to, from] : pairs) {
    if (goes_in_pieces(to, from)) {
      filler(to, [place = static_cast<const char*>(from.const_data_ptr())](char* piece, std::size_t offset,
                                                                           std::size_t bytes) {
        checkpoint::copy_bytes({{piece, place + offset, bytes}});
      });
      continue;
    }
    if (!by_bytes || !takes_bytes(to, from)) at::Tensor(to).copy_(from);
    // As copy_() does: a graph that saved the tensor must detect the change. Inference tensors have no version.
    else if (!to.is_inference()) to.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace muster
