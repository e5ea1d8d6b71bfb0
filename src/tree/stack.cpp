#include "muster/tree/stack.h"

#include <cstring>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/SmallVector.h>

#include "muster/base/error.h"

namespace muster::tree {
namespace {

std::string describe(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::ostringstream text;
  text << at::toString(dtype) << " of shape " << sizes;
  return text.str();
}

void allocate(at::Tensor& batch, at::IntArrayRef row, at::TensorOptions options, const StackPlace& place) {
  c10::SmallVector<int64_t, 8> sizes{place.count};
  sizes.append(row.begin(), row.end());
  ensure_tensor(batch, sizes, options.pinned_memory(place.pinned && options.device().is_cpu()));
}

bool is_plain(const at::Tensor& t) { return t.is_cpu() && t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

void check_row(const at::Tensor& batch, const at::Tensor& sample, const StackPlace& place) {
  const auto row = batch.sizes().slice(1);
  if (row == sample.sizes() && batch.scalar_type() == sample.scalar_type() && batch.device() == sample.device()) return;
  throw_uneven("the first sample is " + describe(row, batch.scalar_type()) + " on " + batch.device().str() +
                   ", this one " + describe(sample.sizes(), sample.scalar_type()) + " on " + sample.device().str(),
               place);
}

template <class T>
void stack_value(at::Tensor& batch, T value, at::ScalarType dtype, const StackPlace& place) {
  if (place.index == 0) allocate(batch, {}, at::TensorOptions(dtype), place);
  static_cast<T*>(batch.mutable_data_ptr())[place.index] = value;
}

}  // namespace

void ensure_tensor(at::Tensor& tensor, at::IntArrayRef sizes, at::TensorOptions options) {
  const bool fits = tensor.defined() && tensor.options().type_equal(options) && tensor.device() == options.device() &&
                    tensor.scalar_type() == options.dtype() && !tensor.requires_grad() && tensor.is_contiguous() &&
                    !(options.pinned_memory() && !tensor.is_pinned());
  if (fits && tensor.sizes() == sizes) return;
  const int64_t needed = c10::multiply_integers(sizes) * static_cast<int64_t>(options.dtype().itemsize());
  const at::NoGradGuard no_grad;
  if (fits && static_cast<int64_t>(tensor.storage().nbytes()) >= needed && tensor.storage_offset() == 0)
    // The memory is large enough, so only sizes change; resize_() would be dispatched for each batch.
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  else tensor = at::empty(sizes, options);
}

void stack_tensor(at::Tensor& batch, const at::Tensor& sample, const StackPlace& place) {
  if (!sample.defined()) throw_uneven("a tensor is undefined", place);
  if (sample.layout() != at::kStrided)
    throw_uneven("sparse tensors cannot be stacked; give the dataset get_batch(indices, batch)", place);
  if (place.index == 0)
    allocate(batch, sample.sizes(), at::TensorOptions(sample.scalar_type()).device(sample.device()), place);
  else check_row(batch, sample, place);
  if (!is_plain(sample)) {
    const at::NoGradGuard no_grad;
    batch.select(0, place.index).copy_(sample);
  } else if (const auto bytes = sample.nbytes()) {
    std::memcpy(static_cast<char*>(batch.mutable_data_ptr()) + place.index * bytes, sample.const_data_ptr(), bytes);
  }
}

void stack_integer(at::Tensor& batch, int64_t value, const StackPlace& place) {
  stack_value(batch, value, at::kLong, place);
}

void stack_bool(at::Tensor& batch, bool value, const StackPlace& place) { stack_value(batch, value, at::kBool, place); }

void stack_real(at::Tensor& batch, double value, const StackPlace& place) {
  const auto dtype = c10::get_default_dtype_as_scalartype();
  if (dtype == at::kDouble) return stack_value(batch, value, at::kDouble, place);
  if (dtype == at::kFloat) return stack_value(batch, static_cast<float>(value), at::kFloat, place);
  if (dtype == at::kBFloat16)
    return stack_value(batch, static_cast<at::BFloat16>(static_cast<float>(value)), dtype, place);
  stack_value(batch, static_cast<at::Half>(static_cast<float>(value)), at::kHalf, place);
}

void throw_uneven(const std::string& what, const StackPlace& place) {
  throw UsageError("MU100", "sample " + std::to_string(place.index) + " of " + std::to_string(place.count) +
                                " does not fit into its batch: " + what +
                                ". Make samples alike, or give the dataset get_batch(indices, batch)");
}

}  // namespace muster::tree
