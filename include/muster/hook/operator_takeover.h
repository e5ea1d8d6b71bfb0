#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string_view>

namespace muster::hook {

/// Runs operators in place of LibTorch, where they are called with a tensor that was marked for it.
/// Thread safety: calls come from every thread that runs operators, at the same time.
class OperatorTakeover {
 public:
  virtual ~OperatorTakeover() = default;
  /// `arguments` are on top of the stack, in the order of the operator's schema. Returns false to let LibTorch run it, or puts
  /// the results in place of the arguments and returns true. Runs above autograd and autocast; inside, the operator is not
  /// asked for again. What it throws comes out of the operator.
  virtual bool run(std::string_view op, size_t arguments, torch::jit::Stack& stack) = 0;
};

/// From now on, operators that take this tensor, or a view of it made later, ask `takeover` first. The tensor keeps its handle
/// and its values, but moves to memory of its own; the mark goes with that memory, so moving the tensor elsewhere
/// (Module::to, set_data) ends it. Marking again replaces the mark.
/// Requires: install_key_fallback() was called; a tensor with a storage. Thread safety: nobody uses the tensor meanwhile.
void mark_for_takeover(const at::Tensor& tensor, std::shared_ptr<OperatorTakeover> takeover);
/// What the tensor is marked with, or nullptr.
std::shared_ptr<OperatorTakeover> takeover_of(const at::Tensor& tensor);

}  // namespace muster::hook
