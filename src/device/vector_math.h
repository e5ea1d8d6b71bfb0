#pragma once  // for other rooms

namespace muster::device {

/// Makes the first call of the CPU's vector math (LibTorch's sin, exp, log, tanh, erf and the like) while no other
/// thread makes one, once per process. MKL chooses its kernels in that call without a lock and stores an unfinished
/// choice in between: threads whose first calls coincide may get kernels of half the precision, or crash. Called when a
/// loader or a runtime is created, before Muster starts a thread that computes.
/// Thread-safe.
/// Why: docs/decisions/0075-vector-math-is-initialized-early.md.
void initialize_vector_math();

}  // namespace muster::device
