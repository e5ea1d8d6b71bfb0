#pragma once

namespace muster::device {

/// This processor multiplies in bfloat16 itself (AVX512-BF16, AMX, or BF16 of ARMv8.6). Others emulate it, several times slower than float32.
/// Of a processor that it knows no way to ask it says yes.
bool multiplies_bfloat16();

}  // namespace muster::device
