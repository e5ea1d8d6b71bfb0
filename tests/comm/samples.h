#pragma once

#include <array>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

inline constexpr std::array kAllDtypes{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                       at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

/// Small whole numbers that depend on rank and place, exact in every dtype; bool gets their parity.
inline at::Tensor sample(int rank, int64_t elements, at::ScalarType dtype, int64_t values = 5) {
  at::Tensor numbers = (at::arange(elements, at::kLong) * 7 + rank * 3).remainder(values);
  return dtype == at::kBool ? numbers.remainder(2).to(at::kBool) : (numbers + 1).to(dtype);
}

/// What all_reduce has to give, the plain way: all ranks' samples one after another, in a wide type.
inline at::Tensor reduced(int world, int64_t elements, at::ScalarType dtype, ReduceOp op, int64_t values = 5) {
  const auto wide = at::isFloatingType(dtype) ? at::kDouble : at::kLong;
  at::Tensor result = sample(0, elements, dtype, values).to(wide);
  for (int rank = 1; rank < world; ++rank) {
    at::Tensor next = sample(rank, elements, dtype, values).to(wide);
    if (op == ReduceOp::sum || op == ReduceOp::mean) result = result + next;
    if (op == ReduceOp::min) result = at::minimum(result, next);
    if (op == ReduceOp::max) result = at::maximum(result, next);
    if (op == ReduceOp::product) result = result * next;
  }
  if (op == ReduceOp::mean) result = result / static_cast<double>(world);
  return result.to(dtype);
}

}  // namespace muster::comm
