#pragma once  // for other rooms

#include "muster/base/environment.h"

/// The processors of this host: which cores are near a device, which of them a rank gets, and what they can do.
/// Why: docs/decisions/0154-choices-of-a-process.md.
namespace muster::device {

/// Core numbers, in ascending order.
using Cores = std::vector<int>;

/// Parses a Linux core list such as "0-3,8". Returns no cores for any other text.
Cores read_cores(std::string_view list);
std::string core_list(const Cores& cores);

/// The cores that the calling thread may run on.
Cores own_cores();

/// Restricts the calling thread, all other threads of this process with the same affinity mask, and threads that they
/// start later to these cores. Memory that these threads write first is then near the cores, too. Returns an empty
/// string, or why the system refused; then nothing has changed.
std::string run_on(const Cores& cores);

/// Cores near a device, or why none are chosen.
struct NearCores {
  Cores cores = {};
  std::string reason = {};  ///< why no cores were chosen; empty if there are cores
};

/// The cores of `own` near the device at this PCI address, as the system below `root` describes it. No cores if the
/// device is equally near to all of them, or if a user or a launcher has already chosen the cores or OpenMP's places.
NearCores near_cores(const std::string& pci_address, const Cores& own, const Environment& variables,
                     const std::string& root = "/");

/// The message that a rank sends to the others: its machine and its near cores, if it has any.
std::string near_cores_message(const NearCores& near, const std::string& root = "/");

/// The cores of rank `rank`, given the messages of all ranks. Ranks on one machine whose devices are near the same
/// cores divide these cores, so that no two ranks use the same processor. No cores if there are fewer processors than
/// ranks, or if the near cores of two ranks overlap only in part.
NearCores share_of_rank(const std::vector<std::string>& messages, size_t rank, const std::string& root = "/");

/// Whether this processor multiplies in bfloat16 natively (AVX512-BF16, AMX, or BF16 of ARMv8.6). Other processors
/// emulate it, several times slower than float32. Returns true for a processor that it cannot query.
bool multiplies_bfloat16();

/// Makes the first call of the CPU's vector math (LibTorch's sin, exp, log, tanh, erf and the like) while no other
/// thread makes one, once per process. MKL chooses its kernels in that call without a lock and stores an unfinished
/// choice in between: threads whose first calls coincide may get kernels of half the precision, or crash. Called when a
/// loader or a runtime is created, before Muster starts a thread that computes.
/// Thread-safe.
/// Why: docs/decisions/0075-vector-math-is-initialized-early.md.
void initialize_vector_math();

}  // namespace muster::device
