#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/custom_backend.h"
#include "muster/comm/rendezvous.h"
#include "muster/sim/backend.h"
#include "muster/sim/sim.h"
#include "muster/testing/compare.h"

#ifndef MUSTER_TEST_DEVICE
#define MUSTER_TEST_DEVICE "sim"
#endif

/// The accelerator that the tests of a program run on: the simulated one, on which results have the CPU's bits under
/// every order, or a GPU. Whatever uses a GPU runs in a process of its own (testing/world.h), as a rank.
namespace muster::testing {

/// As MUSTER_TEST_DEVICE says, "sim" or "cuda"; if it is not set, as the program was compiled.
inline bool on_cuda() {
  const char* named = std::getenv("MUSTER_TEST_DEVICE");
  return std::string(named ? named : MUSTER_TEST_DEVICE) == "cuda";
}

/// Why there is nothing to test on; empty if there is.
inline std::string missing_device() {
  if (!on_cuda()) return {};
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return "no CUDA device: this LibTorch was built without CUDA";
  return c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() == 0 ? "no CUDA device" : "";
}

/// Before the first tensor of a process is made.
inline void use_test_device() {
  at::set_num_threads(1);
  if (!on_cuda()) return sim::install();
  const char* rank = std::getenv("MUSTER_TEST_RANK");
  ::setenv("NCCL_HOSTID", rank ? rank : "0", 1);  // NCCL refuses ranks of one host that share a GPU
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  at::globalContext().setAllowTF32CuDNN(false);
}

/// That of a local rank; ranks share one where there are fewer.
inline at::Device test_device(int local_rank) {
  if (!on_cuda()) return sim::device(local_rank);
  const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank % count)};
}

/// Orders, and what is found by following them, are those of the simulated accelerator.
inline void set_order(uint64_t seed) {
  if (!on_cuda()) sim::set_seed(seed);
}
inline std::string races() {
  std::string text;
  for (const auto& race : on_cuda() ? std::vector<sim::Race>() : sim::take_races()) text += race.text() + "\n";
  return text;
}

/// With `hangs` it does as NCCL does where a rank is missing or calls something else.
inline std::shared_ptr<const comm::BackendEntry> simulated_backend(bool hangs = false) {
  comm::BackendEntry entry{
      c10::DeviceType::PrivateUse1, [hangs](const auto& store, int rank, int size, const auto& options) {
        const sim::BackendOptions meeting;
        return sim::make_backend(store, rank, size,
                                 {.hangs = hangs, .timeout = hangs ? meeting.timeout : options.timeout});
      }};
  return std::make_shared<const comm::BackendEntry>(std::move(entry));
}

/// NCCL, or the simulated collectives. Throws: as find_device_backend().
inline std::shared_ptr<const comm::BackendEntry> collectives_of_device(bool hangs = false) {
  return on_cuda() ? comm::find_device_backend("nccl", at::kCUDA).entry : simulated_backend(hangs);
}

/// What differs from results of the CPU, or from the same program under another strategy: bits on the simulated device;
/// on a GPU, whose kernels round elsewhere, what these dtypes do not explain.
inline std::string unexpected_difference(const at::Tensor& actual, const at::Tensor& expected,
                                         bool half_precision = false) {
  if (!on_cuda()) return difference_in_bits(actual, expected);
  return half_precision ? difference(actual, expected, 0.1, 0.1) : difference(actual, expected, 1e-3, 1e-3);
}

}  // namespace muster::testing
