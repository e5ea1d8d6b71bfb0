#pragma once  // for other rooms

namespace muster::device {

/// Makes the first call of the CPU's vector math (LibTorch's sin, exp, log, tanh, erf and the like) in this thread
/// alone, once per process. MKL chooses its kernels in that call without a lock, and stores an unfinished choice on the
/// way: threads whose first calls coincide may get kernels of half the precision, or crash. Called when a loader or a
/// runtime is created, before Muster starts a thread that computes.
/// Thread-safe.
void initialize_vector_math();

}  // namespace muster::device
