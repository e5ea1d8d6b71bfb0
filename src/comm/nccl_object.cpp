// The only source that includes CUDA's headers. It is built as a separate shared object (libmuster_nccl.so), which is
// opened if the ranks' devices are CUDA's. It links LibTorch, and nothing of Muster.
// Why: docs/decisions/0151-a-backend-of-a-device-is-an-object.md.
#include <stdlib.h>

#include <numeric>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "muster/base/error.h"
#include "muster/comm/rendezvous.h"

namespace {

using muster::GroupOptions;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Nccl = c10d::ProcessGroupNCCL;

/// Switches of LibTorch that end the process when an operation times out, or when LibTorch's watchdog hangs.
constexpr const char* kEndTheProcess[] = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"};

void switch_off_ends_of_the_process() {
  for (const char* name : kEndTheProcess) ::setenv(name, "0", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
}

std::string note() {
  switch_off_ends_of_the_process();
  std::string text;
  for (const char* name : kEndTheProcess) text += std::string(name) + "=" + ::getenv(name) + ", ";  // NOLINT
  return text + "so that Muster's own watch ends all ranks with the first cause; sums are not in the order of ranks";
}

at::Device own_device() { return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice(); }

c10::intrusive_ptr<Nccl::Options> options_of(const GroupOptions& options) {
  auto how = Nccl::Options::create();
  // Muster's watchdog ends an operation. With an equal timeout, NCCL's own would only log at that moment that it is
  // late.
  how->timeout = 2 * options.timeout + std::chrono::minutes(1);
  return how;
}

BackendPtr make(const StorePtr& store, int rank, int size, const GroupOptions& options) {
  switch_off_ends_of_the_process();
  if (c10::cuda::device_count() == 0)
    throw muster::ConfigError("MU563",
                              "the backend nccl needs a GPU of NVIDIA's, and LibTorch finds none: is there a "
                              "driver (nvidia-smi), and does CUDA_VISIBLE_DEVICES name a device? Take "
                              "device_backend none, or accelerator cpu");
  auto how = options_of(options);
  how->global_ranks_in_group.resize(static_cast<std::size_t>(size));  // split() reads these
  std::iota(how->global_ranks_in_group.begin(), how->global_ranks_in_group.end(), 0);
  auto made = c10::make_intrusive<Nccl>(store, rank, size, std::move(how));
  made->setBoundDeviceId(own_device());
  made->eagerConnectSingleDevice(own_device());  // connects now, while all ranks are here, for split()
  return made;
}

BackendPtr split(const BackendPtr& parent, const StorePtr& store, const std::vector<int>& ranks,
                 const GroupOptions& options) {
  auto part = parent->split(store, ranks, options_of(options));
  if (part) part->setBoundDeviceId(own_device());
  return part;
}

}  // namespace

extern "C" const muster::comm::BackendObject muster_backend_object{
    .entry = {.device = c10::DeviceType::CUDA, .make = make, .split = split, .without = {at::kShort}, .note = note}};
