#include "muster/optim/flat_parameters.h"

#include <exception>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "optim/flat.h"

namespace muster::optim {

void write_parameters(FlatParameters* owner, const std::vector<at::Tensor>& parameters,
                      const std::function<void()>& write) {
  if (!owner) return write();
  owner->begin_update();
  std::exception_ptr error;
  try {
    write();
  } catch (const std::exception& failure) {
    if (owner->abandon_update(failure.what())) throw;
    error = std::current_exception();  // the other ranks wait for this rank's parameters even after an error
  } catch (...) {
    if (owner->abandon_update("an exception of no known kind")) throw;
    error = std::current_exception();
  }
  owner->end_update(parameters);
  if (error) std::rethrow_exception(error);
}

namespace {

at::Tensor alias_of(const at::Tensor& tensor, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::NoGradGuard no_grad;
  // Uses set_() because autograd lets a view share the version of its base, and this tensor must have its own version.
  return at::empty({0}, tensor.options()).set_(tensor.storage(), tensor.storage_offset() + offset, sizes, strides);
}

}  // namespace

at::Tensor flat_alias(const at::Tensor& tensor, int64_t offset, int64_t count) {
  return alias_of(tensor, offset, {count}, {1});
}

void point_at(const at::Tensor& alias, const at::Tensor& target, int64_t offset) {
  // Moves the alias instead of making it again: this runs per parameter and step, and set_() would go through the
  // dispatcher.
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(target.storage());
  impl->set_storage_offset(target.storage_offset() + offset);
}

at::Tensor shaped_alias(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  return alias_of(flat, offset, like.sizes(), like.strides());
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool follows(const at::Tensor& a, const at::Tensor& b) {
  // unsafe_storage() skips the check for tensors without a storage; these tensors lie in flat memory.
  return a.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(b.unsafeGetTensorImpl()->unsafe_storage()) &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

}  // namespace muster::optim
