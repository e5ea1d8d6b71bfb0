#include "comm/mpi/object/process_end.h"

#include <stdlib.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include <mpi.h>

namespace muster::comm::mpi {
namespace {

constexpr int kGaveUp = 70;

/// Ends the process if this object still exists after the timeout.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds timeout) : thread_([this, timeout] { watch(timeout); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, timeout, [this] { return done_; })) return;
    std::fprintf(stderr, "muster: MPI_Finalize has waited %.0f s for other ranks; this process ends without them\n",
                 static_cast<double>(timeout.count()) / 1000);
    ::_exit(kGaveUp);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace

void ProcessEnd::finalize_at_exit() {
  process_ = ::getpid();
  ::on_exit(at_exit, this);
}

void ProcessEnd::set_finalize_timeout(std::chrono::milliseconds timeout) noexcept {
  auto known = timeout_.load();
  while (known < timeout && !timeout_.compare_exchange_weak(known, timeout)) continue;
}

void ProcessEnd::at_exit(int status, void* self) { static_cast<const ProcessEnd*>(self)->end(status); }

void ProcessEnd::end(int status) const {
  int finalized = 0;
  if (::getpid() != process_) return;  // a fork of the process
  MPI_Finalized(&finalized);
  if (finalized) return;
  std::fflush(nullptr);
  if (failed_ || status != 0) MPI_Abort(MPI_COMM_WORLD, status ? status : 1);
  const Watchdog watchdog(timeout_);
  MPI_Finalize();
}

}  // namespace muster::comm::mpi
