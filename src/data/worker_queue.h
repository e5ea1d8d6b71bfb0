#pragma once

#include "muster/data/batch_maker.h"

#include "batch_order.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace muster::data {

/// A batch and how many samples it and its step have.
struct MadeBatch {
  std::unique_ptr<BatchBox> box;
  bool last = false;
  StepSamples samples;
  std::string state;  ///< of a stateful stream once the batch was read
};

/// Makes one batch in the calling thread. False if `content.stop` was seen.
bool make_batch(BatchMaker& maker, const BatchContent& content, const EpochRandom& random, bool pinned, MadeBatch& made);

/// The batches of a pass from `first` on, made by threads and handed out in order. At most `capacity` batches wait.
/// Thread safety: take(), try_take(), recycle() and the destructor by one thread.
class WorkerQueue {
 public:
  struct Settings {
    int64_t capacity = 2;
    int64_t first = 0;
    std::chrono::milliseconds patience = std::chrono::seconds(30);  ///< threads that end later than this are spoken of
    bool pinned = false;
    EpochRandom random;
    std::chrono::milliseconds timeout;
  };
  /// One thread per maker. Throws: Error (MU110) if a thread cannot be started.
  WorkerQueue(const Settings& settings, std::shared_ptr<BatchOrder> order, std::vector<std::shared_ptr<BatchMaker>> makers);
  /// Ends the threads: at once between samples. A thread that stays in the dataset's code is waited for, since the dataset and what it
  /// refers to may be destroyed next: with a warning once patience is over, and for `timeout` more (not at all if take() has waited
  /// that long already); then the process ends with code 1 (MU129).
  ~WorkerQueue();
  WorkerQueue(const WorkerQueue&) = delete;

  /// The next batch; none at the end. Throws: what its making threw; Error (MU105) if it does not come in time.
  std::optional<MadeBatch> take();
  /// The next batch if it is ready and did not fail.
  std::optional<MadeBatch> try_take();
  /// Gives a box back whose memory nobody uses any more.
  void recycle(std::unique_ptr<BatchBox> box);

 private:
  struct Shared;
  void end() noexcept;
  void wait_for_threads();

  std::string overdue_;   // what was said of a batch that did not come in time
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace muster::data
