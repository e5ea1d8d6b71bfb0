#include "hook/operator_use.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/function_schema.h>

namespace muster::hook {
namespace {

bool is_metadata_operator(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::data",
                                                        "aten::empty_like",
                                                        "aten::full_like",
                                                        "aten::is_complex",
                                                        "aten::is_floating_point",
                                                        "aten::is_inference",
                                                        "aten::is_leaf",
                                                        "aten::is_pinned",
                                                        "aten::is_same_size",
                                                        "aten::is_set_to",
                                                        "aten::is_signed",
                                                        "aten::new_empty",
                                                        "aten::new_empty_strided",
                                                        "aten::new_full",
                                                        "aten::new_ones",
                                                        "aten::new_zeros",
                                                        "aten::numel",
                                                        "aten::ones_like",
                                                        "aten::output_nr",
                                                        "aten::rand_like",
                                                        "aten::randint_like",
                                                        "aten::randn_like",
                                                        "aten::requires_grad_",
                                                        "aten::result_type",
                                                        "aten::retain_grad",
                                                        "aten::retains_grad",
                                                        "aten::size",
                                                        "aten::stride",
                                                        "aten::sym_is_contiguous",
                                                        "aten::sym_numel",
                                                        "aten::sym_size",
                                                        "aten::sym_storage_offset",
                                                        "aten::sym_stride",
                                                        "aten::zeros_like",
                                                        "aten::_has_compatible_shallow_copy_type",
                                                        "aten::_shape_as_tensor",
                                                        "aten::_version"};
  return names.contains(name);
}

OperatorUse read_schema(const c10::FunctionSchema& schema) {
  OperatorUse use;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i)
    if (const auto* alias = arguments[i].alias_info(); alias && alias->isWrite()) use.written |= uint64_t{1} << i;
  use.needs_data = !is_metadata_operator(schema.name());
  use.view = use.written == 0 && !schema.returns().empty();
  for (const auto& result : schema.returns()) use.view &= result.alias_info() != nullptr;
  return use;
}

}  // namespace

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> cache;
  auto found = cache.find(&schema);
  return found != cache.end() ? found->second : cache.emplace(&schema, read_schema(schema)).first->second;
}

}  // namespace muster::hook
