#include "worker_threads.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace muster::data {

// Calls OpenMP directly to set only the calling thread's number of threads: at::set_num_threads would also change the
// number for every later thread of the process, including autograd's. The function is looked up because the wheel
// bundles OpenMP under another library name.
void use_one_intra_op_thread() {
  // Lets LibTorch initialize this thread first; its initialization would otherwise undo the setting.
  at::get_num_threads();
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
  using SetLocal = int (*)(int);
  if (auto set = reinterpret_cast<SetLocal>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) set(1);
}

}  // namespace muster::data
