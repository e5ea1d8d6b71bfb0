#include "data/worker_queue.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>

#include <ATen/Parallel.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::data {
namespace {

// Calls OpenMP directly to set only the calling thread's number of threads: at::set_num_threads would also change the
// number for every later thread of the process, including autograd's. The function is looked up because the wheel
// bundles OpenMP under another library name.
void use_one_intra_op_thread() {
  // Lets LibTorch initialize this thread first; its initialization would otherwise undo the setting.
  at::get_num_threads();
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
  using SetLocal = int (*)(int);
  if (auto set = reinterpret_cast<SetLocal>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) set(1);
}

/// Ends the process: a thread that still reads what its owner is about to free would silently corrupt memory or
/// samples.
[[noreturn]] void end_process(const std::string& overdue, const std::string& waited) {
  if (!overdue.empty()) log::error(overdue);
  log::error("MU129", ": a loader's worker thread stayed in the dataset's code for ", waited,
             " after its loop was over; the process ends, "
             "since what the thread uses may be freed next. Look at what the dataset waits for, or raise the loader's "
             "timeout");
  std::fflush(stdout);
  std::_Exit(1);
}

constexpr device::SyncPoint kDevice{"batches: workers make them on the loader's device"};

/// Records an event on the worker thread's current stream, since datasets may make tensors on the device.
device::Event event_of(BatchBox& box, at::Device device) {
  bool is_there = false;
  if (!device.is_cpu()) box.visit([&](at::Tensor& t) { is_there |= t.defined() && t.device() == device; });
  return is_there ? device::record(device) : std::nullopt;
}

}  // namespace

bool make_batch(BatchMaker& maker, const BatchContent& content, const EpochRandom& random, bool pinned,
                MadeBatch& made) {
  if (!made.box) made.box = maker.new_box();
  made.indices = content.indices;
  made.last = content.last;
  made.samples = content.samples;
  made.state = content.state;
  if (content.none) return true;
  return maker.make({.indices = content.indices,
                     .pinned = pinned,
                     .random = random,
                     .records = content.records.get(),
                     .stop = content.stop},
                    *made.box);
}

struct WorkerQueue::Shared {
  struct Slot {
    MadeBatch batch;
    std::exception_ptr error;
    bool ready = false;
  };

  Shared(const Settings& s, std::shared_ptr<BatchOrder> o)
      : settings(s), order(std::move(o)), slots(s.capacity), taken(s.first), ticket(s.first) {}

  Slot& slot(int64_t batch) MUSTER_REQUIRES(mutex) { return slots[batch % slots.size()]; }
  bool may_start() const MUSTER_REQUIRES(mutex) {
    return stop || ticket >= last || ticket < taken + static_cast<int64_t>(slots.size());
  }
  bool run_one(BatchMaker& maker);
  bool take_ticket(int64_t& batch, std::unique_ptr<BatchBox>& box);
  void put(int64_t batch, Slot made);
  void end_before(int64_t batch);
  MadeBatch take_ready() MUSTER_REQUIRES(mutex);

  const Settings settings;
  std::shared_ptr<BatchOrder> order;
  base::Mutex mutex;
  int64_t last MUSTER_GUARDED_BY(mutex) = std::numeric_limits<int64_t>::max();  // index after the last batch
  base::Condition ready;  // signalled when the next batch to take exists or never will
  base::Condition room;   // signalled when there is room for another batch
  base::Condition left;   // signalled when a thread has ended
  base::Mutex turn;       // held while a batch is prepared, if order matters
  std::vector<std::unique_ptr<BatchBox>> spare MUSTER_GUARDED_BY(mutex);
  std::vector<Slot> slots MUSTER_GUARDED_BY(mutex);
  std::atomic<bool> stop{false};
  int running MUSTER_GUARDED_BY(mutex) = 0;
  int64_t taken MUSTER_GUARDED_BY(mutex);   // next batch to take
  int64_t ticket MUSTER_GUARDED_BY(mutex);  // next batch to start
  int waiting_for_room MUSTER_GUARDED_BY(mutex) = 0;
  bool waiting_for_batch MUSTER_GUARDED_BY(mutex) = false;
};

void WorkerQueue::Shared::put(int64_t batch, Slot made) {
  const base::Lock lock(mutex);
  if (made.error) last = std::min(last, batch + 1);
  slot(batch) = std::move(made);
  if (waiting_for_batch && batch == taken) ready.notify_one();
}

void WorkerQueue::Shared::end_before(int64_t batch) {
  const base::Lock lock(mutex);
  last = std::min(last, batch);
  if (waiting_for_batch) ready.notify_one();
  room.notify_all();
}

/// Waits for room for one more batch. Returns false if nothing is left to do.
bool WorkerQueue::Shared::take_ticket(int64_t& batch, std::unique_ptr<BatchBox>& box) {
  base::Lock lock(mutex);
  ++waiting_for_room;
  room.wait(lock, [this]() MUSTER_REQUIRES(mutex) { return may_start(); });
  --waiting_for_room;
  if (stop || ticket >= last) return false;
  batch = ticket++;
  if (!spare.empty()) {
    box = std::move(spare.back());
    spare.pop_back();
  }
  return true;
}

bool WorkerQueue::Shared::run_one(BatchMaker& maker) {
  Slot made{.batch = {}, .error = nullptr, .ready = true};
  BatchContent content;
  content.stop = &stop;
  std::optional<base::Lock> in_order;
  if (!order->random_access()) in_order.emplace(turn);
  int64_t batch = 0;
  if (!take_ticket(batch, made.batch.box)) return false;
  try {
    const DatasetScope scope;
    const device::DeviceScope on_device(kDevice, settings.device);
    if (!order->prepare(batch, content)) {
      end_before(batch);
      return false;
    }
    in_order.reset();
    make_batch(maker, content, settings.random, settings.pinned, made.batch);
    if (settings.pinned)
      made.batch.box->visit([](at::Tensor& t) {
        if (t.defined() && t.is_cpu()) t = t.pin_memory();
      });
    made.batch.made = event_of(*made.batch.box, settings.device);
  } catch (...) {
    made.error = std::current_exception();
  }
  put(batch, std::move(made));
  return true;
}

WorkerQueue::WorkerQueue(const Settings& settings, std::shared_ptr<BatchOrder> order,
                         std::vector<std::shared_ptr<BatchMaker>> makers)
    : shared_(std::make_shared<Shared>(settings, std::move(order))) {
  try {
    for (auto& maker : makers) {
      {
        const base::Lock lock(shared_->mutex);
        ++shared_->running;
      }
      threads_.emplace_back([shared = shared_, maker = std::move(maker)]() mutable {
        pthread_setname_np(pthread_self(), "muster-data");
        use_one_intra_op_thread();
        while (shared->run_one(*maker)) {}
        maker.reset();
        const base::Lock lock(shared->mutex);
        --shared->running;
        shared->left.notify_all();
      });
    }
  } catch (const std::system_error& e) {
    {
      const base::Lock lock(shared_->mutex);
      --shared_->running;
    }
    end();
    throw Error("MU110",
                "a loader's worker thread could not be started (" + std::string(e.what()) + "); ask for fewer workers");
  }
}

WorkerQueue::~WorkerQueue() { end(); }

void WorkerQueue::end() noexcept {
  wait_for_threads();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerQueue::wait_for_threads() {
  auto& s = *shared_;
  base::Lock lock(s.mutex);
  s.stop = true;
  s.room.notify_all();
  const auto all_left = [&s]() MUSTER_REQUIRES(s.mutex) { return s.running == 0; };
  if (s.left.wait_for(lock, s.settings.patience, all_left)) return;
  const auto more = overdue_.empty() ? s.settings.timeout : std::chrono::milliseconds(0);
  log::warning("MU129", ": a loop over a loader is over, and ", s.running,
               " of its worker threads stayed in the dataset's code for ", seconds_text(s.settings.patience),
               "; waiting for ", seconds_text(more), " more");
  if (!s.left.wait_for(lock, more, all_left)) end_process(overdue_, seconds_text(s.settings.patience + more));
}

MadeBatch WorkerQueue::Shared::take_ready() {
  auto& next = slot(taken);
  if (next.error) std::rethrow_exception(next.error);
  next.ready = false;
  ++taken;
  if (waiting_for_room > 0) room.notify_one();
  return std::move(next.batch);
}

std::optional<MadeBatch> WorkerQueue::take() {
  auto& s = *shared_;
  base::Lock lock(s.mutex);
  s.waiting_for_batch = true;
  const bool came = s.ready.wait_for(
      lock, s.settings.timeout, [&s]() MUSTER_REQUIRES(s.mutex) { return s.slot(s.taken).ready || s.taken >= s.last; });
  s.waiting_for_batch = false;
  if (!came) {
    const Error error("MU105", "no worker made batch " + std::to_string(s.taken) + " within " +
                                   std::to_string(s.settings.timeout.count()) +
                                   " ms; the dataset may hang, or options.timeout may be too short");
    overdue_ = error.what();
    throw error;
  }
  overdue_.clear();
  if (s.taken >= s.last) return std::nullopt;
  return s.take_ready();
}

std::optional<MadeBatch> WorkerQueue::try_take() {
  auto& s = *shared_;
  base::Lock lock(s.mutex);
  if (s.taken >= s.last || !s.slot(s.taken).ready || s.slot(s.taken).error) return std::nullopt;
  return s.take_ready();
}

void WorkerQueue::recycle(std::unique_ptr<BatchBox> box) {
  const base::Lock lock(shared_->mutex);
  shared_->spare.push_back(std::move(box));
}

}  // namespace muster::data
