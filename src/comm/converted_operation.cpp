#include "comm/converted_operation.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.reshape({-1}).view(at::kByte) : tensor;
}

at::Tensor widened(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kInt) : tensor; }

/// The reduction to use for numbers that are 0 or 1.
ReduceOp of_bits(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

}  // namespace

bool ConvertedOperation::is_needed(const Operation& operation, const std::vector<c10::ScalarType>& without) {
  const auto& tensor = described_tensor(operation);
  return !without.empty() && tensor.defined() &&
         std::find(without.begin(), without.end(), tensor.scalar_type()) != without.end();
}

void ConvertedOperation::require_way(const Operation& operation) {
  const auto dtype = described_tensor(operation).scalar_type();
  if (reduces(operation.kind) && dtype != at::kShort && dtype != at::kBool)
    throw ConfigError("MU564", formatted("the backend of the device lacks {}, and {} cannot travel as another dtype; "
                                         "convert the tensor, or take device_backend none",
                                         name_of(dtype), describe(operation)));
}

ConvertedOperation::ConvertedOperation(const Operation& operation) : converted_(operation) {
  const auto dtype = described_tensor(operation).scalar_type();
  const bool widens = reduces(operation.kind) && dtype == at::kShort;
  const auto convert = widens ? widened : as_bytes;
  converted_.in = convert(operation.in);
  // One converted tensor if the operation has one: then it works in place, or on a part of its result.
  converted_.out = convert(operation.out);
  if (dtype == at::kBool) converted_.reduce = of_bits(operation.reduce);
}

void ConvertedOperation::finish(const Operation& operation, bool has_result) const {
  // Bytes are a view of the operation's own memory and need no copy.
  if (has_result && operation.out.defined() && !converted_.out.is_alias_of(operation.out))
    at::Tensor(operation.out).copy_(converted_.out);
}

}  // namespace muster::comm
