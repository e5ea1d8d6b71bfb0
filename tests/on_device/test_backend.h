#pragma once

#include <chrono>
#include <sstream>
#include <string>

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include "muster/comm/rendezvous.h"
#include "muster/testing/world.h"
#include "on_device/test_device.h"

namespace muster::testing {

inline int sum_over_two_ranks(const ClusterEnvironment& cluster) {
  use_test_device();
  const c10::DeviceGuard on_device(test_device(cluster.rank));
  const auto world =
      comm::connect(cluster, {.device_backend = collectives_of_device(), .timeout = std::chrono::seconds(30)});
  const at::Tensor tensor = at::ones({8}, test_device(cluster.rank));
  world.all_reduce(tensor);
  return tensor.sum().item<float>() == 16 ? 0 : 3;
}

/// Why collectives of the device cannot be tested between ranks; empty if they can. It is tried once.
inline std::string unproven_backend() {
  if (!on_cuda()) return {};
  const auto attempt = []() -> std::string {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    ProcessWorldOptions options;
    options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
    options.label = "attempt";
    for (const auto& rank : run_processes(2, sum_over_two_ranks, options)) {
      if (rank.ok()) continue;
      std::istringstream lines(rank.output);
      std::string line, last = rank.timed_out ? "no answer" : "exit code " + std::to_string(rank.exit_code);
      while (std::getline(lines, line))
        if (!line.empty()) last = line;
      return "NCCL across ranks is unproven on this machine: an all_reduce of two ranks ended with: " + last;
    }
    return {};
  };
  static const std::string why = attempt();
  return why;
}

/// Ranks with collectives of the device. NCCL promises nothing for ranks that share a GPU.
class BackendOfDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = unproven_backend(); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace muster::testing
