#include "comm/operation.h"

#include <array>

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr std::array<std::string_view, 17> kNames{"all_reduce",
                                                  "all_gather",
                                                  "all_gatherv",
                                                  "reduce_scatter",
                                                  "broadcast",
                                                  "reduce",
                                                  "gather",
                                                  "scatter",
                                                  "all_to_all",
                                                  "barrier",
                                                  "broadcast_bytes",
                                                  "all_gather_bytes",
                                                  "gather_bytes",
                                                  "subgroup",
                                                  "allocate_shared_buffer",
                                                  "send",
                                                  "recv"};
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

std::string_view name_of(OperationKind kind) {
  auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : std::string_view("an unknown operation");
}

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

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter || kind == OperationKind::reduce;
}

bool has_root(OperationKind kind) {
  switch (kind) {
    case OperationKind::broadcast:
    case OperationKind::reduce:
    case OperationKind::gather:
    case OperationKind::scatter:
    case OperationKind::broadcast_bytes:
    case OperationKind::gather_bytes: return true;
    default: return false;
  }
}

bool is_point_to_point(OperationKind kind) { return kind == OperationKind::send || kind == OperationKind::recv; }

bool has_list(OperationKind kind) {
  return kind == OperationKind::subgroup || kind == OperationKind::allocate_shared_buffer;
}

bool has_one_shape(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce:
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
    case OperationKind::broadcast:
    case OperationKind::reduce:
    case OperationKind::subgroup:
    case OperationKind::allocate_shared_buffer:
    case OperationKind::send:
    case OperationKind::recv: return true;
    default: return false;
  }
}

const at::Tensor& described_tensor(const Operation& operation) {
  if (operation.in.defined()) return operation.in;
  if (!operation.parts.empty()) return operation.parts.front();
  return operation.out;
}

int64_t payload_bytes(const Operation& operation) {
  if (operation.parts.empty()) {
    const auto& tensor = described_tensor(operation);
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  int64_t bytes = 0;
  for (const auto& part : operation.parts) bytes += static_cast<int64_t>(part.nbytes());
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
  auto shape = has_list(operation.kind) ? at::IntArrayRef(operation.list)
               : tensor.defined()       ? tensor.sizes()
                                        : at::IntArrayRef();
  return describe(describe(operation.kind, operation.reduce, operation.root, dtype, shape), operation.label);
}

}  // namespace muster::comm
