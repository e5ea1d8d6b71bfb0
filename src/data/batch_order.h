#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/data/detail/batch_maker.h"
#include "muster/data/detail/loader_state.h"
#include "muster/data/detail/stream_reader.h"

namespace muster::data {

/// The samples of one batch.
struct BatchContent {
  std::vector<int64_t> indices;
  bool last = false;                 ///< true for the last batch of a rank's pass
  bool none = false;                 ///< true if the rank has no part of the step, so that no batch is made
  std::unique_ptr<Records> records;  ///< samples of a stream
  StepSamples samples;
  std::string state;  ///< state of a stateful stream after the batch was read
  const std::atomic<bool>* stop = nullptr;
};

/// The contents of this rank's batches in one pass.
class BatchOrder {
 public:
  virtual ~BatchOrder() = default;
  /// True: any thread may prepare() any batch at any time. False: one thread at a time, batch after batch in order.
  virtual bool random_access() const = 0;
  /// Returns false if the pass ends before this batch, or if `content.stop` was set.
  virtual bool prepare(int64_t batch, BatchContent& content) = 0;
};

}  // namespace muster::data
