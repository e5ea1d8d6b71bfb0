#include "muster/base/environment.h"

#include <dlfcn.h>

#include <cstdio>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include "base/text.h"
#include "base/variables.h"
#include "comm/object_file.h"
#include "device/device.h"
#include "device/memory.h"
#include "graph/recording.h"
#include "hook/half_lstm.h"
#include "hook/random_scope.h"
#include "hook/watched_storage.h"
#include "muster/base/detail/options.h"
#include "muster/base/format.h"
#include "probe.h"

namespace muster::probe {
namespace {

void line(const char* name, const std::string& value) { std::printf("%-14s %s\n", name, value.c_str()); }

/// The names that have (or lack) a feature.
template <class Has>
std::string those(std::initializer_list<std::pair<const char*, bool>> names, Has wanted) {
  std::vector<std::string> found;
  for (const auto& [name, has] : names)
    if (has == wanted) found.push_back(name);
  return listed(found);
}

/// The CUDA that LibTorch was built with, and the driver and devices here.
std::string cuda() {
  const auto driver = device::cuda_version_of_driver();
  const auto of_driver = driver ? "the driver supports CUDA " + *driver : std::string("there is no driver");
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.hasCUDART()) return "none: this LibTorch was built without it; " + of_driver;
  const auto version = hooks.versionCUDART();
  return formatted("LibTorch was built with {}.{} and sees {} device(s); {}", version / 1000, version % 1000 / 10,
                   device::count(), of_driver);
}

/// The version of the NCCL that LibTorch has loaded into this process.
std::string nccl() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
  const auto ask =
      reinterpret_cast<int (*)(int*)>(::dlsym(library ? library : RTLD_DEFAULT, "ncclGetVersion"));  // 0 means success
  int version = 0;
  if (!ask || ask(&version) != 0) return "none: this LibTorch has none";
  return formatted("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Whether an optional part of Muster exists.
std::string object(const char* name) {
  const auto place = comm::place_of_object(name);
  return formatted("backend {}: {}", name, place.empty() ? formatted("there is no libmuster_{}.so", name) : place);
}

/// What Muster changes for the whole process, when it does so, and how to prevent it.
std::vector<std::string> entries() {
  const auto variables = Environment::of_process();
  const auto entry = [](const char* name, bool allowed, const char* when, const std::string& variable) {
    return formatted("{:<14} {}", name,
                     allowed ? std::string(when) + "; kept out by " + variable : "kept out by " + variable);
  };
  const auto interceptor = [&](const char* name, hook::DisableVariable its, const char* when) {
    return entry(name, its.allows(), when, std::string(its.variable) + "=1");
  };
  const auto forks = variables.find(cluster::kForkRanks);
  bool forked = true;
  if (forks) options::Value<bool>::read(*forks, forked);
  return {entry("forked ranks", forked, "before main, under muster run", std::string(cluster::kForkRanks) + "=0"),
          interceptor("key fallback", hook::kStorageInterceptorsSwitch, "from the first sharded model on"),
          interceptor("random key", hook::kRandomKeySwitch, "from the first data loader on"),
          interceptor("recorder", graph::kRecorderSwitch, "with an autograd engine, from the first recompute on"),
          interceptor("half LSTM", hook::kHalfLstmSwitch, "from the first 16-mixed on a CPU on"),
          entry("kept memory", device::choose_kept_memory("auto", true, variables).kept,
                "from the first model prepared on a CPU on", "MUSTER_KEEP_MEMORY=0 or malloc's own variables")};
}

}  // namespace

void print_environment() {
  line("libtorch", formatted("{} (CPU kernels for {})", TORCH_VERSION, at::get_cpu_capability()));
  line("threads",
       formatted("{} within an operator, {} between operators", at::get_num_threads(), at::get_num_interop_threads()));
  line("devices", joined(device::available()));
  line("cuda", cuda());
  line("nccl", nccl());
  for (const auto* name : {"nccl", "mpi"}) line("object", object(name));
  const std::initializer_list<std::pair<const char*, bool>> parts = {
      {"mkl", at::hasMKL()},   {"lapack", at::hasLAPACK()}, {"openmp", at::hasOpenMP()}, {"mkldnn", at::hasMKLDNN()},
      {"cuda", at::hasCUDA()}, {"hip", at::hasHIP()},       {"mps", at::hasMPS()},       {"xpu", at::hasXPU()}};
  line("has", those(parts, true));
  line("has not", those(parts, false));
  for (const auto& entry : entries()) line("process-wide", entry);
  line("backends",
       "shm (shared memory of one host), hierarchical (the same on each host, gloo between hosts), gloo, mpi, "
       "threads (ranks as threads, for tests), fake (one rank of many)");
}

}  // namespace muster::probe
