#pragma once  // for other rooms

#include <cstdint>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace muster::hook {

/// Floating-point operations, a multiplication and an addition being two, of matrix products, convolutions and scaled
/// dot-product attention with these arguments; 0 for any other operator. `name`: "aten::mm".
int64_t flops_of(std::string_view name, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace muster::hook
