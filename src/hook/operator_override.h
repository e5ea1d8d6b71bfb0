#pragma once  // for other rooms

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "hook/interceptor.h"
#include "hook/watched_storage.h"

namespace c10 {
struct FunctionSchema;
}

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

/// Lets an override that marks one of the operator's arguments run the operator.
void take_over(Call& call);

inline constexpr Interceptor kOperatorOverride{.name = "operator override",
                                               .priority = Priority::operator_override,
                                               .takes = nullptr,
                                               .run = take_over,
                                               .disabled_by = kStorageInterceptorsSwitch};

/// What an operator does with the bytes of its arguments; derived from its schema.
struct OperatorUse {
  bool needs_data = true;
  bool view = false;
  uint64_t written = 0;  // bit i: whether argument i is written
};

/// Thread-safe. The reference is valid as long as this thread runs.
const OperatorUse& use_of(const c10::FunctionSchema& schema);

}  // namespace muster::hook
