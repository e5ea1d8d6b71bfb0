#include "graph/operator_traits.h"

#include <algorithm>
#include <memory>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <c10/util/flat_hash_map.h>

#include "hook/operator_override.h"
#include "hook/random_scope.h"

namespace muster::graph {
namespace {

using Names = std::unordered_set<std::string>;

bool is_uninitialized(const std::string& name) {
  static const Names names = {
      "aten::empty",           "aten::empty_like", "aten::empty_permuted",    "aten::empty_strided",
      "aten::empty_quantized", "aten::new_empty",  "aten::new_empty_strided", "aten::_empty_affine_quantized"};
  return names.contains(name);
}

/// In-place operators that do not read what they write. Those with an `out` argument do not, either.
bool overwrites_self(const std::string& name) {
  static const Names names = {"aten::copy_",      "aten::fill_",      "aten::zero_",        "aten::normal_",
                              "aten::uniform_",   "aten::random_",    "aten::exponential_", "aten::cauchy_",
                              "aten::bernoulli_", "aten::geometric_", "aten::log_normal_",  "aten::eye_"};
  return names.contains(name);
}

/// Return memory for their own backward, of which they leave parts unwritten.
bool has_workspace(const std::string& name) {
  static const Names names = {"aten::mkldnn_rnn_layer", "aten::_ctc_loss", "aten::_cudnn_rnn", "aten::miopen_rnn",
                              "aten::_cudnn_ctc_loss"};
  return names.contains(name);
}

/// Change which memory a tensor has, so that what lies in it no longer tells what the operators before have made.
bool moves_memory(const std::string& name) {
  static const Names names = {"aten::resize_",        "aten::resize_as_",      "aten::set_",
                              "aten::resize_output_", "aten::_resize_output_", "aten::set_data"};
  return names.contains(name);
}

/// A batch normalization updates running statistics in training. Not all schemas declare it.
void read_statistics(const c10::FunctionSchema& schema, OperatorTraits& traits) {
  static const Names names = {"aten::native_batch_norm",
                              "aten::cudnn_batch_norm",
                              "aten::miopen_batch_norm",
                              "aten::_batch_norm_with_update",
                              "aten::_batch_norm_with_update_functional",
                              "aten::_native_batch_norm_legit",
                              "aten::_native_batch_norm_legit_functional",
                              "aten::batch_norm_update_stats",
                              "aten::batch_norm_gather_stats",
                              "aten::batch_norm_gather_stats_with_counts"};
  if (!names.contains(schema.name())) return;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "running_mean" || arguments[i].name() == "running_var")
      traits.statistics |= uint64_t{1} << i;
    if (arguments[i].name() == "training") traits.training = static_cast<int>(i);
  }
}

bool returns_zeros(const std::string& name) {
  static const Names names = {"aten::new_zeros", "aten::zeros", "aten::zeros_like"};
  return names.contains(name);
}

/// Whether LibTorch replaces it by its parts. aten::linear and matmul also have a kernel for Autograd, which dense
/// tensors do not reach.
bool is_composite(const c10::OperatorHandle& op) {
  using enum c10::DispatchKey;
  bool composite = op.hasKernelForDispatchKey(CompositeImplicitAutograd);
  for (const auto key : {CPU, CUDA, PrivateUse1, CompositeExplicitAutograd, AutogradCPU, AutogradCUDA})
    composite &= !op.hasKernelForDispatchKey(key);
  return composite;
}

bool has_kernel_below_autograd(const c10::OperatorHandle& op) {
  using enum c10::DispatchKey;
  bool found = false;
  for (const auto key : {CPU, CUDA, PrivateUse1}) found |= op.hasComputedKernelForDispatchKey(key);
  return found;
}

/// Whether values of this type may hold tensors elsewhere than in themselves or in a list.
bool is_opaque(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::AnyType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::TupleType:
    case c10::TypeKind::VarType: return true;
    default:
      return std::ranges::any_of(type.containedTypes(), [](const c10::TypePtr& inner) { return is_opaque(*inner); });
  }
}

OperatorTraits read_traits(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const auto& use = hook::use_of(schema);
  OperatorTraits traits{.schema = &schema, .written = use.written};
  bool out = false, opaque = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (hook::is_generator(argument)) traits.generator = static_cast<int>(i);
    out |= argument.is_out();
    opaque |= is_opaque(*argument.type());
  }
  read_statistics(schema, traits);
  const auto space = op.operator_name().getNamespace().value_or("");
  const auto set = [&](Trait trait, bool on) {
    if (on) traits.traits |= static_cast<uint16_t>(trait);
  };
  set(Trait::autograd_only, !has_kernel_below_autograd(op));
  set(Trait::autocast, op.hasKernelForAnyDispatchKey(c10::autocast_dispatch_keyset));
  set(Trait::composite, is_composite(op));
  set(Trait::keeps_results, space == "c10d" || space == "_c10d_functional" || moves_memory(name));
  set(Trait::opaque, opaque);
  set(Trait::overwrites, out || overwrites_self(name));
  set(Trait::random, traits.generator >= 0 || op.hasTag(at::Tag::nondeterministic_seeded));
  set(Trait::sizes_only, !use.needs_data);
  set(Trait::uninitialized, is_uninitialized(name));
  set(Trait::view, use.view);
  set(Trait::workspace, has_workspace(name));
  set(Trait::zeros, returns_zeros(name));
  return traits;
}

}  // namespace

const OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  // By schema: an operator's handle is made again at each lookup. A library that is unloaded takes its schema with it,
  // and a later one may get the same address, but LibTorch unloads no library of operators.
  thread_local ska::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<const OperatorTraits>> cache;
  const auto* schema = &op.schema();
  if (const auto found = cache.find(schema); found != cache.end()) return *found->second;
  return *cache.emplace(schema, std::make_unique<const OperatorTraits>(read_traits(op))).first->second;
}

}  // namespace muster::graph
