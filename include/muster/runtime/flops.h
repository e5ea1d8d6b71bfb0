#pragma once

#include <cstdint>
#include <functional>

namespace muster {

/// Floating-point operations of what `f` runs on this thread: those of matrix products, convolutions and attention, as
/// LibTorch's dispatcher calls them, with a multiplication and an addition counted as two. Other operators are few
/// beside these, and count nothing. A backward on the CPU counts its matrix products, too.
int64_t measure_flops(const std::function<void()>& f);

}  // namespace muster
