#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/device_world.h"
#include "comm/every_operation.h"
#include "muster/testing/compare.h"

namespace muster::comm {

using Results = std::vector<std::vector<at::Tensor>>;

/// A mean for which two streams wait, as the second one reads it. What one rank does alone, only its stream orders.
inline at::Tensor read_on_another_stream(const Communicator& comm, at::Device device) {
  const at::Tensor mean = values(comm.rank(), 64, at::kFloat).to(device);
  auto work = comm.start_all_reduce(mean, ReduceOp::mean);
  work.wait();
  if (device.is_cpu() || comm.size() == 1) return mean;
  const c10::StreamGuard other(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false));
  work.wait();
  return mean.cpu();
}

/// Of every operation, and of that mean.
inline std::vector<at::Tensor> all_results(const Communicator& comm, at::ScalarType dtype,
                                           at::Device device = at::kCPU) {
  auto all = results_of(comm, 29, dtype, device);
  all.push_back(read_on_another_stream(comm, device));
  return all;
}

/// What every operation gives on the CPU, by rank.
inline Results results_on_the_cpu(int world, at::ScalarType dtype) {
  Results all(static_cast<std::size_t>(world));
  EXPECT_EQ(errors_of(run_thread_world(world, {},
                                       [&](const Communicator& comm) {
                                         all[static_cast<std::size_t>(comm.rank())] = all_results(comm, dtype);
                                       })),
            "");
  return all;
}

/// The first result of a rank with other bits. Which of two zeros a backend of its own takes for the least is its
/// affair.
inline std::string first_difference(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted,
                                    bool own_backend) {
  const auto value = [&](const at::Tensor& result) {
    const auto host = result.cpu();
    return own_backend ? host + at::zeros({}, host.options()) : host;
  };
  if (got.size() != wanted.size()) return "another number of results";
  for (std::size_t i = 0; i < got.size(); ++i)
    if (auto difference = testing::difference_in_bits(value(got[i]), value(wanted[i])); !difference.empty())
      return "result " + std::to_string(i) + ": " + difference;
  return {};
}

}  // namespace muster::comm
