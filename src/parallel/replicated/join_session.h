#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/options.h"

namespace muster::parallel {

/// The agreement between ranks that have batches left and those that have none: before a model communicates, all ranks
/// are informed.
/// Thread safety: one thread at a time.
class JoinSession {
 public:
  /// `models` is the number of models; every rank must pass the same.
  JoinSession(const comm::Communicator& group, int64_t models, const JoinOptions& options)
      : group_(group.internal("join_uneven_inputs")), models_(models), options_(options) {}

  /// What the ranks that are still active do next; `active` is 0 if none is.
  struct Next {
    JoinEvent event = JoinEvent::finished;
    int64_t model = -1;
    int active = 0;
    int root = 0;     ///< the highest active rank
    int failed = -1;  ///< a rank whose loop threw
  };
  /// Collective. Throws: UsageError (MU118), (MU119); CommError (MU050) for a value that no rank sends.
  Next report(JoinEvent event, int64_t model);

  /// The divisor of the sum of gradients over ranks.
  double divisor(int active) const { return options_.divide_by_initial_world_size ? group_.size() : active; }
  /// Whether some rank ran out of batches while others had some left; last_rank() is the last of these then.
  bool uneven() const { return uneven_; }
  int last_rank() const { return last_rank_; }
  /// Whether all ranks know that the loop cannot continue.
  bool broken() const { return broken_; }

 private:
  /// `said`: one rank's event, model and number of models.
  void check(int rank, const int64_t* said);

  bool broken_ = false;
  comm::Communicator group_;
  int last_rank_ = 0;
  int64_t models_;
  JoinOptions options_;
  bool uneven_ = false;
};

}  // namespace muster::parallel
