#include <deque>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "sim/call.h"
#include "sim/kernels.h"
#include "sim/registration.h"

namespace muster::sim {
namespace {

using c10::DispatchKey;

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  Call call(op, Values(stack->end() - static_cast<ptrdiff_t>(count), stack->end()));
  torch::jit::drop(*stack, count);
  call.run(*stack);
}

torch::CppFunction boxed() { return torch::CppFunction::makeFromBoxedFunction<&fallback>(); }

/// LibTorch 2.13's SGD kernel on the CPU skips whole vectors of halves. A device computes them in float32.
void step_sgd(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr size_t kLists = 3;  // values, gradients, momenta
  const auto count = op.schema().arguments().size();
  std::vector<std::pair<at::Tensor, at::Tensor>> halves;  // each half tensor with the one that is computed in its place
  for (size_t i = 0; i < kLists; ++i) {
    auto& list = torch::jit::peek(*stack, i, count);
    auto tensors = list.toTensorVector();
    for (auto& tensor : tensors) {
      if (!at::isReducedFloatingType(tensor.scalar_type())) continue;
      halves.emplace_back(tensor, tensor.to(at::kFloat));
      tensor = halves.back().second;
    }
    list = std::move(tensors);
  }
  fallback(op, stack);
  for (const auto& [half, computed] : halves) half.copy_(computed);
}

/// Has the bits of the CPU's dropout, which is not this operator but a product with noise.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const auto kept = at::empty_like(input).bernoulli_(1 - p);
  return {input * (p == 1 ? at::zeros_like(kept) : kept / (1 - p)), kept.to(at::kBool)};
}

/// The algorithm of scaled_dot_product_attention: 0 selects plain operators.
int64_t plain_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        double, bool, std::optional<double>, bool) {
  return 0;
}

/// Whether the CPU has a kernel where other devices compose operators, which gives different bits.
bool is_composed_elsewhere(const c10::OperatorHandle& op) {
  const bool composed = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                        op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  return composed && op.hasKernelForDispatchKey(DispatchKey::CPU) && !read_schema(op.schema()).is_view;
}

/// Registers these operators one by one, because a composite kernel takes precedence over a backend's fallback.
void register_composed(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !name.name.starts_with("aten::")) continue;
    if (op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    const bool convolution = name.name == "aten::convolution" || name.name == "aten::convolution_backward";
    if (convolution || is_composed_elsewhere(*op)) library.impl(toString(name).c_str(), boxed());
  }
}

}  // namespace

torch::Library& kept_library(const char* name_space, DispatchKey key) {
  static auto& all = *new std::deque<torch::Library>;  // a destructor would unregister the kernels
  return all.emplace_back(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

void register_operators() {
  kept_library("_", DispatchKey::PrivateUse1).fallback(boxed());
  auto& library = kept_library("aten", DispatchKey::PrivateUse1);
  register_storage(library);
  register_copies(library);
  register_recurrent(library);
  library.impl("native_dropout", &dropout);
  library.impl("_fused_sdp_choice", &plain_attention);
  library.impl("_fused_sgd_", torch::CppFunction::makeFromBoxedFunction<&step_sgd>());
  register_composed(library);
}

}  // namespace muster::sim
