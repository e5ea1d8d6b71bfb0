#pragma once

#include "muster/data/batch_maker.h"

#include "index_order.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace muster::data {

/// A batch and how many samples its step has over all ranks.
struct MadeBatch {
  std::unique_ptr<BatchBox> box;
  int64_t real_samples = 0;
};

/// The batches [first, last) of a pass, made by threads and handed out in order. At most `capacity` batches wait.
/// Thread safety: take(), try_take(), recycle() and the destructor by one thread.
class WorkerQueue {
 public:
  struct Settings {
    int64_t capacity = 2;
    int64_t first = 0;
    int64_t last = 0;
    bool pinned = false;
    EpochRandom random;
    std::chrono::milliseconds timeout;
  };
  /// One thread per maker. Throws: Error (MU110) if a thread cannot be started.
  WorkerQueue(const Settings& settings, std::shared_ptr<IndexOrder> order, std::vector<std::shared_ptr<BatchMaker>> makers);
  /// Ends the threads: at once between samples. A thread that stays in the dataset's code for 30 s is left to itself.
  ~WorkerQueue();
  WorkerQueue(const WorkerQueue&) = delete;

  /// The next batch. Throws: what its making threw; Error (MU105) if it does not come in time.
  MadeBatch take();
  /// The next batch if it is ready and did not fail.
  std::optional<MadeBatch> try_take();
  /// Gives a box back whose memory nobody uses any more.
  void recycle(std::unique_ptr<BatchBox> box);

 private:
  struct Shared;
  void end() noexcept;

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace muster::data
