#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include "sim/generator.h"
#include "sim/order.h"

namespace muster::sim {

/// What a call of an operator does, derived from its schema.
struct OperatorUse {
  std::vector<char> writes = {};  ///< whether each argument is written
  bool makes = false;             ///< whether it makes results that are not arguments
  bool resizes = false;           ///< whether it has `out` arguments
  bool reads = false;             ///< whether it reads tensors
  bool is_view = false;
  bool waits = false;  ///< whether the host must know values: shapes depend on them, or a result is not a tensor
  int generator = -1;  ///< index of the generator argument; -1: none
};

OperatorUse read_schema(const c10::FunctionSchema& schema);
/// The use of an operator by its schema; computed once and cached.
const OperatorUse& use_of(const c10::FunctionSchema& schema);

using Values = std::vector<c10::IValue>;
using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

/// The value with f applied to each tensor in it.
c10::IValue mapped(const c10::IValue& value, const TensorMap& f);
std::vector<at::Tensor> tensors_in(const Values& values);

/// One call of an operator with tensors of the device. Results are made now, from shapes alone; the CPU's kernel fills
/// them when the current stream reaches the call.
class Call {
 public:
  /// Throws unless all tensors are on one device, in the cases in which CUDA's kernels throw.
  Call(const c10::OperatorHandle& op, Values arguments);
  void run(torch::jit::Stack& stack);

 private:
  /// What is known without any value: the arguments after the call, and the results.
  struct Prediction {
    Values arguments, results;
  };

  at::Tensor argument_on_device(const c10::IValue& argument, const at::Tensor& tensor,
                                std::optional<c10::Device>& device);
  bool indexes_by_mask() const;
  Generator& generator() const;
  Values with(const TensorMap& f, c10::DeviceType type) const;
  Values for_kernel() const;
  Prediction predict() const;
  Prediction run_on_ones() const;
  at::Tensor made_like(const at::Tensor& like) const;
  void resize_outputs(const Values& predicted) const;
  std::vector<Access> accesses() const;
  void enqueue(const Values& results) const;
  void draw_now(torch::jit::Stack& stack);
  void wait_and_run(torch::jit::Stack& stack);
  void push(torch::jit::Stack& stack, Values made) const;

  const c10::OperatorHandle& op_;
  const std::string& name_;
  const OperatorUse& use_;
  Values arguments_;
  c10::Device device_;
};

}  // namespace muster::sim
