#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/full.h>

#include "muster/data/loader.h"

namespace muster::data::testing {

inline std::vector<int64_t> numbers(int64_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

inline std::vector<int64_t> list(const at::Tensor& batch) {
  const auto* p = batch.const_data_ptr<int64_t>();
  return {p, p + batch.numel()};
}

using Batches = std::vector<std::vector<int64_t>>;

/// One pass over a loader of numbers.
inline Batches run(const DataLoader<at::Tensor>& loader) {
  Batches all;
  for (auto& batch : loader) all.push_back(list(batch));
  return all;
}

/// A row of floats that tells index and random number, and the index.
struct Noisy {
  int64_t n = 0;
  int64_t size() const { return n; }
  std::tuple<at::Tensor, int64_t> get(size_t i, SampleRandom& random) const {
    auto row = at::full({3}, static_cast<double>(i));
    row.mutable_data_ptr<float>()[2] = static_cast<float>(random.uniform());
    return {row, static_cast<int64_t>(i)};
  }
};

/// Threads of this process that work for a loader.
inline int worker_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (std::getline(comm, name) && name == "muster-data") ++count;
  }
  return count;
}

/// All of them have ended. The system lists a thread for a moment after it was joined, so this looks more than once.
inline bool no_worker_left() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (worker_threads() > 0)
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

/// A sampler without a seek of its own: gives (position * 5 + epoch) modulo n, for n no multiple of 5.
class Stepped : public Sampler {
 public:
  explicit Stepped(int64_t n) : n_(n) {}
  int64_t size() const override { return n_; }
  void start(int64_t epoch) override {
    epoch_ = epoch;
    position_ = 0;
  }
  int64_t next() override { return (position_++ * 5 + epoch_) % n_; }

 private:
  int64_t epoch_ = 0;
  int64_t n_;
  int64_t position_ = 0;
};

}  // namespace muster::data::testing
