#include "comm/operation.h"

#include <array>

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

/// What is true of every operation of a kind.
struct KindFacts {
  std::string_view name;
  bool has_one_shape = false;
  bool has_root = false;
  bool reduces = false;
};

/// By OperationKind.
constexpr std::array kKinds{
    KindFacts{.name = "all_reduce", .has_one_shape = true, .reduces = true},
    KindFacts{.name = "all_gather", .has_one_shape = true},
    KindFacts{.name = "all_gatherv"},
    KindFacts{.name = "reduce_scatter", .has_one_shape = true, .reduces = true},
    KindFacts{.name = "broadcast", .has_one_shape = true, .has_root = true},
    KindFacts{.name = "reduce", .has_one_shape = true, .has_root = true, .reduces = true},
    KindFacts{.name = "gather", .has_root = true},
    KindFacts{.name = "scatter", .has_root = true},
    KindFacts{.name = "all_to_all"},
    KindFacts{.name = "barrier"},
    KindFacts{.name = "broadcast_bytes", .has_root = true},
    KindFacts{.name = "all_gather_bytes"},
    KindFacts{.name = "gather_bytes", .has_root = true},
    KindFacts{.name = "subgroup", .has_one_shape = true},
    KindFacts{.name = "allocate_shared_buffer", .has_one_shape = true},
    KindFacts{.name = "send", .has_one_shape = true},
    KindFacts{.name = "recv", .has_one_shape = true},
};
static_assert(kKinds.size() == static_cast<std::size_t>(OperationKind::recv) + 1);

const KindFacts& facts_of(OperationKind kind) {
  static constexpr KindFacts kUnknown{.name = "an unknown operation"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kKinds.size() ? kKinds[index] : kUnknown;
}

constexpr std::array<std::string_view, 5> kReduceNames{"sum", "mean", "min", "max", "product"};

bool has_tensor(OperationKind kind) { return kind != OperationKind::barrier && !has_list(kind); }

}  // namespace

ReduceOp parse_reduce_op(std::string_view name) {
  for (std::size_t i = 0; i < kReduceNames.size(); ++i)
    if (name == kReduceNames[i]) return static_cast<ReduceOp>(i);
  if (name == "avg") return ReduceOp::mean;
  if (name == "prod") return ReduceOp::product;
  throw ConfigError("MU055",
                    formatted("'{}' is not a way to reduce{}", name,
                              known_ones(std::array{"sum", "mean (or avg)", "min", "max", "product (or prod)"})));
}

std::string_view name_of(OperationKind kind) { return facts_of(kind).name; }

std::string_view name_of(ReduceOp op) {
  auto index = static_cast<std::size_t>(op);
  return index < kReduceNames.size() ? kReduceNames[index] : std::string_view("?");
}

std::string name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return "float64";
    case at::kFloat: return "float32";
    case at::kHalf: return "float16";
    case at::kLong: return "int64";
    case at::kInt: return "int32";
    case at::kShort: return "int16";
    case at::kChar: return "int8";
    case at::kByte: return "uint8";
    default: break;
  }
  return lower_case(c10::toString(dtype));
}

bool reduces(OperationKind kind) { return facts_of(kind).reduces; }
bool has_root(OperationKind kind) { return facts_of(kind).has_root; }
bool has_one_shape(OperationKind kind) { return facts_of(kind).has_one_shape; }
bool is_point_to_point(OperationKind kind) { return kind == OperationKind::send || kind == OperationKind::recv; }
bool has_list(OperationKind kind) {
  return kind == OperationKind::subgroup || kind == OperationKind::allocate_shared_buffer;
}

const at::Tensor& described_tensor(const Operation& operation) {
  if (operation.in.defined()) return operation.in;
  if (!operation.parts.empty()) return operation.parts.front();
  return operation.out;
}

at::IntArrayRef described_shape(const Operation& operation, const at::Tensor& tensor) {
  if (has_list(operation.kind)) return operation.list;
  return tensor.defined() ? tensor.sizes() : at::IntArrayRef();
}

int64_t payload_bytes(const Operation& operation) {
  const auto bytes_of = [](const at::Tensor& one) { return one.defined() ? static_cast<int64_t>(one.nbytes()) : 0; };
  if (operation.parts.empty()) return bytes_of(described_tensor(operation));
  int64_t bytes = 0;
  for (const auto& part : operation.parts) bytes += bytes_of(part);
  return bytes;
}

std::string describe(OperationKind kind, ReduceOp reduce, int root, at::ScalarType dtype, at::IntArrayRef shape) {
  std::string text(name_of(kind));
  if (reduces(kind)) text += formatted("({})", name_of(reduce));
  if (has_root(kind)) text += formatted("(root {})", root);
  if (kind == OperationKind::send) text += formatted(" to rank {}", root);
  if (kind == OperationKind::recv) text += formatted(" from rank {}", root);
  if (kind == OperationKind::allocate_shared_buffer) text += " of bytes " + shape_text(shape);
  if (kind == OperationKind::subgroup) text += " of ranks " + shape_text(shape);
  if (!has_tensor(kind) || dtype == at::ScalarType::Undefined) return text;
  text += " of " + name_of(dtype);
  if (has_one_shape(kind)) text += " " + shape_text(shape);
  return text;
}

std::string describe(const std::string& what, const OperationLabel& label) {
  std::string text = label.source == Source::library ? "the library's " + what : what;
  if (!label.text.empty()) text += " for " + label.text;
  if (label.tensor_count != 1)
    text += formatted(", tensor {} of {} of a value", label.tensor_index + int64_t{1}, label.tensor_count);
  if (label.gradient_step >= 0) text += formatted(" in gradient step {}", label.gradient_step);
  return text;
}

std::string describe(const Operation& operation) {
  const auto& tensor = described_tensor(operation);
  auto dtype = tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined;
  return describe(describe(operation.kind, operation.reduce, operation.root, dtype, described_shape(operation, tensor)),
                  operation.label);
}

}  // namespace muster::comm
