#include "muster/tree/detail/pack.h"

#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "muster/base/error.h"

namespace muster::tree {
namespace {

constexpr int64_t kAlignment = 64;                 // alignment of tensors in bytes
constexpr uint64_t kMark = 0x3152544e55534d55ull;  // first word of packed bytes

int64_t aligned(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

[[noreturn]] void refuse_bytes() {
  throw UsageError(
      "MU111",
      "these bytes are not a packed value of the type that was asked for, or they are cut off; unpack them as the "
      "type that was packed, with the same version of Muster on both sides");
}

}  // namespace

void Packer::count(size_t n) {
  const uint64_t fixed = n;
  bytes(&fixed, sizeof fixed);
}

void Packer::text(std::string_view text) {
  count(text.size());
  bytes(text.data(), text.size());
}

void Packer::tensor(const at::Tensor& tensor) {
  count(tensor.defined());
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw UsageError("MU111",
                     "a tensor that is sparse or quantized cannot be packed for files or other ranks; make it dense");
  count(static_cast<size_t>(tensor.scalar_type()));
  count(static_cast<size_t>(tensor.dim()));
  for (const int64_t size : tensor.sizes()) count(static_cast<size_t>(size));
  count(static_cast<size_t>(payload_));
  tensors_.emplace_back(tensor, payload_);
  payload_ += aligned(static_cast<int64_t>(tensor.nbytes()));
}

at::Tensor Packer::finish() const {
  const auto structure = static_cast<int64_t>(structure_.size());
  const int64_t start = aligned(2 * static_cast<int64_t>(sizeof(uint64_t)) + structure);
  auto packed = at::empty({start + payload_}, at::kByte);
  auto* to = packed.mutable_data_ptr<uint8_t>();
  const uint64_t head[] = {kMark, static_cast<uint64_t>(structure)};
  std::memcpy(to, head, sizeof head);
  std::memcpy(to + sizeof head, structure_.data(), structure_.size());
  std::memset(to + sizeof head + structure, 0, static_cast<size_t>(start - structure) - sizeof head);
  for (const auto& [tensor, place] : tensors_) {
    auto plain = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
    // Copies where values become available only through an operator, as for a parameter that is being gathered.
    if (plain.numel() > 0 &&
        !plain.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get())
      plain = plain.clone();
    const auto bytes = static_cast<int64_t>(plain.nbytes());
    if (bytes > 0) std::memcpy(to + start + place, plain.const_data_ptr(), plain.nbytes());
    std::memset(to + start + place + bytes, 0, static_cast<size_t>(aligned(bytes) - bytes));
  }
  return packed;
}

Unpacker::Unpacker(const at::Tensor& packed) : packed_(packed) {
  uint64_t head[2];
  if (packed_.scalar_type() != at::kByte || packed_.dim() != 1 || packed_.numel() < static_cast<int64_t>(sizeof head))
    refuse_bytes();
  // Tensors are views of these bytes, so each must start at an address aligned for its dtype.
  if (!packed_.is_contiguous() || packed_.storage_offset() % kAlignment != 0) packed_ = packed_.clone();
  std::memcpy(head, packed_.const_data_ptr(), sizeof head);
  position_ = sizeof head;
  if (head[0] != kMark || head[1] > static_cast<uint64_t>(packed_.numel() - position_)) refuse_bytes();
  end_ = position_ + static_cast<int64_t>(head[1]);
}

void Unpacker::bytes(void* to, size_t count) {
  if (count > static_cast<size_t>(end_ - position_)) refuse_bytes();
  std::memcpy(to, packed_.const_data_ptr<uint8_t>() + position_, count);
  position_ += static_cast<int64_t>(count);
}

size_t Unpacker::count() {
  uint64_t n = 0;
  bytes(&n, sizeof n);
  return n;
}

std::string Unpacker::text() {
  const auto size = count();
  if (size > static_cast<size_t>(end_ - position_)) refuse_bytes();
  std::string text(size, '\0');
  bytes(text.data(), size);
  return text;
}

at::Tensor Unpacker::tensor() {
  if (count() == 0) return {};
  const auto dtype = static_cast<at::ScalarType>(count());
  const auto dims = count();
  if (dims > 64 || static_cast<size_t>(dtype) >= static_cast<size_t>(at::ScalarType::Undefined)) refuse_bytes();
  std::vector<int64_t> sizes(dims);
  int64_t elements = 1;
  for (auto& size : sizes) {
    size = static_cast<int64_t>(count());
    if (size < 0 || (size > 0 && elements > packed_.numel() / size)) refuse_bytes();
    elements *= size;
  }
  const int64_t place = aligned(end_) + static_cast<int64_t>(count());
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  if (elements == 0) return at::empty(sizes, dtype);
  if (place < end_ || place % kAlignment != 0 || bytes > packed_.numel() || place > packed_.numel() - bytes)
    refuse_bytes();
  return packed_.narrow(0, place, bytes).view(dtype).view(sizes);
}

void Unpacker::finish() const {
  if (position_ != end_) refuse_bytes();
}

}  // namespace muster::tree
