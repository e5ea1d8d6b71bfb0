#pragma once

#include <cstdint>
#include <functional>

namespace muster {

/// Runs `f` and returns its floating-point operations on this thread: those of matrix products, convolutions and
/// attention that go through LibTorch's dispatcher; a multiplication and an addition count as two. Other operators
/// contribute little and are not counted. Matrix products of a backward on the CPU are counted, too.
int64_t measure_flops(const std::function<void()>& f);

}  // namespace muster
