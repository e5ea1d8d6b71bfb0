#include "worker_threads.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace muster::data {

// at::set_num_threads would also change the number that every later thread of the process starts with, autograd's
// included. OpenMP's own call sets the calling thread's number; it is looked up because the wheel carries its OpenMP
// under a name of its own.
void use_one_intra_op_thread() {
  // Lets LibTorch do its own set-up of this thread first, which would otherwise undo ours later.
  at::get_num_threads();
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
  using SetLocal = int (*)(int);
  if (auto set = reinterpret_cast<SetLocal>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) set(1);
}

}  // namespace muster::data
