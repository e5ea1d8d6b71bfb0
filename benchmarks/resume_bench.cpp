// Milliseconds to the first batch after a skip, asked as "SAMPLES": a loader of shuffled rows is made, told to begin at
// this sample, and gives one batch.
#include <span>
#include <string>

#include <torch/torch.h>

#include "muster/data/loader.h"
#include "protocol.h"

namespace {

constexpr int64_t kRows = 2'000'000, kBatch = 100;

/// Row i is computed, so that no disk or cache has a say.
struct Rows {
  int64_t size() const { return kRows; }
  void get_batch(std::span<const int64_t> indices, torch::Tensor& out) const {
    muster::tree::ensure_tensor(out, {static_cast<int64_t>(indices.size()), 8}, torch::kFloat);
    auto* to = out.mutable_data_ptr<float>();
    for (const int64_t index : indices)
      for (int64_t column = 0; column < 8; ++column) *to++ = static_cast<float>(index % 1000 + column);
  }
};

bench::Measured measure(const std::string& samples) {
  const int64_t skipped = std::stoll(samples) / kBatch;
  int64_t rows = 0, position = 0;
  const double time = bench::seconds([&] {
    const Rows data;
    auto loader = muster::skip_first_batches(
        muster::DataLoader(data, {.batch_size = kBatch, .seed = 1, .shuffle = true}), skipped);
    for (auto& batch : loader) {
      rows = batch.size(0);
      position = loader.num_yielded();
      break;
    }
  });
  return {time * 1e3, static_cast<double>(rows * position), position == skipped + 1};
}

}  // namespace

int main() {
  at::set_num_threads(1);
  return bench::serve(measure);
}
