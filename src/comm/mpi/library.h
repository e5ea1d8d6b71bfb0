#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "comm/mpi/calls.h"
#include "comm/mpi/duplicated_comm.h"

namespace muster::comm::mpi {

/// MPI in this process. It is opened when the first group needs it, and ends with the process.
/// Thread safety: any thread.
class Library {
 public:
  static Library& of_process();

  /// Opens and initializes MPI unless that has been done. Throws: ConfigError (MU567), (MU568), CommError (MU557).
  Calls& calls();
  /// The ranks of this communicator; nullopt: those of MPI_COMM_WORLD, which is duplicated once. Collective: its ranks.
  /// Throws: what calls() throws; CommError (MU058) if not all of them came before the deadline.
  std::shared_ptr<DuplicatedComm> connect(const std::optional<int>& communicator,
                                          std::chrono::steady_clock::time_point deadline);

 private:
  std::shared_ptr<DuplicatedComm> duplicate(Handle communicator, std::chrono::steady_clock::time_point deadline);
  void leave();

  base::Mutex mutex_;
  Calls* calls_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  base::Mutex whole_mutex_;
  std::shared_ptr<DuplicatedComm> whole_ MUSTER_GUARDED_BY(whole_mutex_);
  base::Mutex comms_mutex_;
  std::vector<std::weak_ptr<DuplicatedComm>> comms_ MUSTER_GUARDED_BY(comms_mutex_);
};

}  // namespace muster::comm::mpi
