#pragma once  // for other rooms

#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace muster::hook {

/// Runs operators in place of LibTorch when they are called with a tensor that was marked for it.
/// Thread safety: calls come from every thread that runs operators, at the same time.
class OperatorOverride {
 public:
  virtual ~OperatorOverride() = default;
  /// The top `arguments` values of the stack are the operator's arguments, in the order of its schema. Returns false to
  /// let LibTorch run the operator, or replaces the arguments by the results and returns true. Runs before autograd and
  /// autocast; inside, run() is not called again. What it throws propagates out of the operator.
  virtual bool run(std::string_view op, size_t arguments, torch::jit::Stack& stack) = 0;
};

/// From now on, operators that take this tensor, or a view of it made later, call `operator_override` first. The tensor
/// keeps its handle and its values, but moves to new memory. The mark belongs to that memory, so moving the tensor
/// elsewhere (Module::to, set_data) ends it. Marking again replaces the mark. Requires: install_storage_interceptors()
/// was called; a tensor with a storage. Thread safety: no other thread uses the tensor during the call.
void mark_for_override(const at::Tensor& tensor, std::shared_ptr<OperatorOverride> operator_override);
/// The override that the tensor is marked with, or nullptr.
std::shared_ptr<OperatorOverride> override_of(const at::Tensor& tensor);

}  // namespace muster::hook
