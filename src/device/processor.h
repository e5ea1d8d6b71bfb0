#pragma once  // for other rooms

namespace muster::device {

/// Whether this processor multiplies in bfloat16 natively (AVX512-BF16, AMX, or BF16 of ARMv8.6). Other processors
/// emulate it, several times slower than float32. Returns true for a processor that it cannot query.
bool multiplies_bfloat16();

}  // namespace muster::device
