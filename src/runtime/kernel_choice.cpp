#include "kernel_choice.h"

#include <cstdlib>
#include <string>

#include <ATen/Context.h>

#include "base/log.h"

namespace muster::runtime {
namespace {

void choose_deterministic_kernels(bool warn_only, c10::Device device) {
  at::globalContext().setDeterministicAlgorithms(true, warn_only);
  // Without this variable cuBLAS products are not reproducible, and LibTorch refuses them.
  if (device.is_cuda()) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace

void choose_kernels(const RuntimeOptions& options, c10::Device device, bool warns) {
  auto& context = at::globalContext();
  if (options.deterministic) choose_deterministic_kernels(options.deterministic.warns(), device);
  if (options.deterministic && options.benchmark.value_or(false) && warns)
    log::warning(
        "MU572",
        ": deterministic and benchmark are both set: cuDNN takes the kernel that was the fastest in a trial, which "
        "may be another one in each run, so results may differ between runs; take one of the two out");
  if (options.benchmark) context.setBenchmarkCuDNN(*options.benchmark);
  else if (options.deterministic) context.setBenchmarkCuDNN(false);
  if (options.matmul_precision != MatmulPrecision("auto"))
    context.setFloat32MatmulPrecision(std::string(options.matmul_precision.text()));
}

}  // namespace muster::runtime
