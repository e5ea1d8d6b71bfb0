#include "probe.h"

#include "muster/base/format.h"
#include "muster/device/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#include <cstdio>
#include <string>

namespace muster::probe {
namespace {

void line(const char* name, const std::string& value) { std::printf("%-14s %s\n", name, value.c_str()); }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Of these names, those that have (or lack) something.
template <class Has>
std::string those(std::initializer_list<std::pair<const char*, bool>> names, Has wanted) {
  std::vector<std::string> found;
  for (const auto& [name, has] : names)
    if (has == wanted) found.push_back(name);
  return found.empty() ? "none" : joined(found);
}

}  // namespace

void print_environment() {
  line("libtorch", formatted("{} (CPU kernels for {})", TORCH_VERSION, at::get_cpu_capability()));
  line("threads", formatted("{} within an operator, {} between operators", at::get_num_threads(), at::get_num_interop_threads()));
  line("devices", joined(device::available()));
  const std::initializer_list<std::pair<const char*, bool>> parts = {
      {"mkl", at::hasMKL()}, {"lapack", at::hasLAPACK()}, {"openmp", at::hasOpenMP()}, {"mkldnn", at::hasMKLDNN()},
      {"cuda", at::hasCUDA()}, {"hip", at::hasHIP()}, {"mps", at::hasMPS()}, {"xpu", at::hasXPU()}};
  line("has", those(parts, true));
  line("has not", those(parts, false));
  line("backends", "gloo, threads (ranks as threads, for tests), fake (one rank of many)");
}

}  // namespace muster::probe
