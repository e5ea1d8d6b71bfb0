#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "muster/sim/backend.h"
#include "simulated.h"

namespace muster::sim {

using RankBody = std::function<void(int rank, const c10::intrusive_ptr<c10d::Backend>& group)>;

/// What each rank threw; ranks are threads, each with a device of its own.
inline std::vector<std::string> run_ranks(int size, const RankBody& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const c10::DeviceGuard guard(device(rank));
      try {
        body(rank, make_backend(store, rank, size));
      } catch (const std::exception& failure) {
        errors[static_cast<size_t>(rank)] = failure.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

inline void expect_ranks(int size, const RankBody& body) {
  for (const auto& error : run_ranks(size, body)) EXPECT_EQ(error, "");
}

}  // namespace muster::sim
