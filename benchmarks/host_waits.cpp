// Preloaded, it counts how often a process waits for a GPU: its functions come before those of CUDA's runtime of the
// same names, in whatever language the program is. Copies that CUDA itself makes wait are not counted.
#include <dlfcn.h>

#include <atomic>

namespace {

std::atomic<long> waits{0};
constexpr int kUnknownError = 999;

/// CUDA's own function. Python loads the runtime without showing its names to other libraries.
template <class Function>
Function* found(const char* name) {
  void* place = ::dlsym(RTLD_NEXT, name);
  for (const char* runtime : {"libcudart.so.13", "libcudart.so.12"})
    if (void* opened = place ? nullptr : ::dlopen(runtime, RTLD_NOW | RTLD_NOLOAD)) place = ::dlsym(opened, name);
  return reinterpret_cast<Function*>(place);
}

template <class... T>
int counted(const char* name, T... arguments) {
  ++waits;
  auto* const own = found<int(T...)>(name);
  return own ? own(arguments...) : kUnknownError;
}

}  // namespace

extern "C" {
long bench_host_waits() { return waits; }
int cudaStreamSynchronize(void* stream) { return counted("cudaStreamSynchronize", stream); }
int cudaEventSynchronize(void* event) { return counted("cudaEventSynchronize", event); }
int cudaDeviceSynchronize() { return counted("cudaDeviceSynchronize"); }
}
