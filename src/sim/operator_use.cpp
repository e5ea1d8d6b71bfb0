#include "sim/operator_use.h"

#include <set>
#include <string>
#include <unordered_map>

namespace muster::sim {
namespace {

/// Whether shapes of results depend on values; CUDA waits for these, too.
bool depends_on_values(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::_unique",           "aten::_unique2",           "aten::argwhere",      "aten::bincount",
      "aten::linalg_eig",        "aten::linalg_lstsq",       "aten::masked_select", "aten::nonzero",
      "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim",    "aten::unique_dim_consecutive"};
  return names.contains(name);
}

bool is_tensor(const c10::Type& type) { return type.str().find("Tensor") != std::string::npos; }

}  // namespace

OperatorUse read_schema(const c10::FunctionSchema& schema) {
  OperatorUse use;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    use.writes.push_back(writes);
    use.resizes |= argument.is_out();
    use.reads |= !writes && is_tensor(*argument.type());
    if (argument.type()->str().find("Generator") != std::string::npos) use.generator = static_cast<int>(i);
  }
  for (const auto& result : schema.returns()) {
    const auto* info = result.alias_info();
    use.is_view |= info && !info->isWrite();
    use.makes |= !info;
    use.waits |= !is_tensor(*result.type());
  }
  use.waits |= depends_on_values(schema.name());
  return use;
}

const OperatorUse& use_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorUse> known;
  const auto found = known.find(&schema);
  return found != known.end() ? found->second : known.emplace(&schema, read_schema(schema)).first->second;
}

}  // namespace muster::sim
