#pragma once

#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>

#include "batch_order.h"
#include "device/order.h"
#include "hook/random_scope.h"
#include "muster/data/detail/batch_maker.h"

namespace muster::data {

/// Active while a dataset's code runs: random operators draw from the scope's generator, and nothing is recorded for
/// backward. Running below autograd makes a small operator a fifth cheaper.
/// Why: docs/decisions/0031-random-operators-in-datasets.md.
struct DatasetScope {
  hook::RandomScope random;
  at::AutoDispatchBelowADInplaceOrView no_gradients;
};

/// A batch with the sample counts of the batch and its step.
struct MadeBatch {
  std::unique_ptr<BatchBox> box;
  std::vector<int64_t> indices = {};
  bool last = false;
  device::Event made = {};  ///< event after a worker's operations on the device for the batch
  StepSamples samples;
  std::string state;  ///< state of a stateful stream after the batch was read
};

/// Makes one batch in the calling thread. Returns false if `content.stop` was set.
bool make_batch(BatchMaker& maker, const BatchContent& content, const EpochRandom& random, bool pinned,
                MadeBatch& made);

/// The batches of a pass from `first` on, made by worker threads and returned in order. At most `capacity` batches
/// wait.
/// Thread safety: take(), try_take(), recycle() and the destructor by one thread.
class WorkerQueue {
 public:
  struct Settings {
    int64_t capacity = 2;
    at::Device device = at::kCPU;  ///< current device of the threads
    int64_t first = 0;
    std::chrono::milliseconds patience = std::chrono::seconds(30);  ///< wait for threads to end before a warning
    bool pinned = false;
    EpochRandom random;
    std::chrono::milliseconds timeout;
  };
  /// Starts one thread per maker. Throws: Error (MU110) if a thread cannot be started.
  WorkerQueue(const Settings& settings, std::shared_ptr<BatchOrder> order,
              std::vector<std::shared_ptr<BatchMaker>> makers);
  /// Ends the threads, at the latest after their current sample. It waits for a thread that is still in the dataset's
  /// code, since the dataset and the objects it refers to may be destroyed next: it warns after `patience`, and waits
  /// for `timeout` more (not at all if take() has already waited that long); then it ends the process with code 1
  /// (MU129).
  ~WorkerQueue();
  WorkerQueue(const WorkerQueue&) = delete;

  /// The next batch; nullopt at the end. Throws: the exception thrown while making it; Error (MU105) on a time-out.
  std::optional<MadeBatch> take();
  /// The next batch if it is ready and making it did not fail.
  std::optional<MadeBatch> try_take();
  /// Returns a box for reuse. Requires: nobody uses its memory any more.
  void recycle(std::unique_ptr<BatchBox> box);

 private:
  struct Shared;
  void end() noexcept;
  void wait_for_threads();

  std::string overdue_;  // message about a batch that was not made in time
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace muster::data
