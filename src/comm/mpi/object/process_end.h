#pragma once

#include <atomic>
#include <chrono>

namespace muster::comm::mpi {

/// Ends a process for which Muster initialized MPI: by MPI_Finalize, which waits for the other ranks, but only for a
/// limited time; or by MPI_Abort, which ends them, if a group has failed or the process ends with an error.
/// Thread safety: any thread.
class ProcessEnd {
 public:
  void finalize_at_exit();
  void fail() noexcept { failed_ = true; }
  /// The longest of all timeouts that are set counts.
  void set_finalize_timeout(std::chrono::milliseconds timeout) noexcept;

 private:
  static void at_exit(int status, void* self);
  void end(int status) const;

  int process_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<std::chrono::milliseconds> timeout_{};
};

}  // namespace muster::comm::mpi
