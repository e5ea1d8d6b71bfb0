#include "muster/base/detail/environment.h"

#include <cstdio>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#include "muster/base/detail/listing.h"
#include "muster/base/detail/options.h"
#include "muster/base/format.h"
#include "muster/cluster/detail/variables.h"
#include "muster/device/detail/device.h"
#include "muster/device/detail/host_memory.h"
#include "muster/hook/detail/half_lstm.h"
#include "muster/hook/detail/random_scope.h"
#include "muster/hook/detail/watched_storage.h"
#include "probe.h"

namespace muster::probe {
namespace {

void line(const char* name, const std::string& value) { std::printf("%-14s %s\n", name, value.c_str()); }

/// Of these names, those that have (or lack) something.
template <class Has>
std::string those(std::initializer_list<std::pair<const char*, bool>> names, Has wanted) {
  std::vector<std::string> found;
  for (const auto& [name, has] : names)
    if (has == wanted) found.push_back(name);
  return listed(found);
}

/// What Muster changes for the whole process, when, and how to keep it out.
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
  const std::initializer_list<std::pair<const char*, bool>> parts = {
      {"mkl", at::hasMKL()},   {"lapack", at::hasLAPACK()}, {"openmp", at::hasOpenMP()}, {"mkldnn", at::hasMKLDNN()},
      {"cuda", at::hasCUDA()}, {"hip", at::hasHIP()},       {"mps", at::hasMPS()},       {"xpu", at::hasXPU()}};
  line("has", those(parts, true));
  line("has not", those(parts, false));
  for (const auto& entry : entries()) line("process-wide", entry);
  line("backends",
       "shm (shared memory of one host), hierarchical (the same on each host, gloo between hosts), gloo, mpi, "
       "mpi_collectives, threads (ranks as threads, for tests), fake (one rank of many)");
}

}  // namespace muster::probe
