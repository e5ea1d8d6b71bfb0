#pragma once

#include "muster/data/batch_maker.h"
#include "muster/data/loader_state.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace muster::data {

/// What one batch is to be made of.
struct BatchContent {
  std::vector<int64_t> indices;
  bool last = false;                ///< of its rank's pass
  bool none = false;                ///< its rank has no part of the step, so nothing is to be made
  std::unique_ptr<Records> records; ///< of a stream
  StepSamples samples;
  std::string state;                ///< of a stateful stream, once the batch was read
  const std::atomic<bool>* stop = nullptr;
};

/// What this rank's batches are made of in one pass.
class BatchOrder {
 public:
  virtual ~BatchOrder() = default;
  /// Any thread may prepare() any batch at any time; otherwise one thread at a time, batch after batch.
  virtual bool random_access() const = 0;
  /// False if the pass ends before this batch, or `content.stop` was seen.
  virtual bool prepare(int64_t batch, BatchContent& content) = 0;
};

}  // namespace muster::data
