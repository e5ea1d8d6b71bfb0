#pragma once  // for other rooms

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/options.h"

namespace muster::parallel {

/// Runs `f`, a loop over batches whose number may differ between ranks. A rank whose `f` has returned takes part in
/// what the others still communicate for these models, with zero gradients, until `f` has returned on all ranks. Then
/// every rank gets the parameters and buffers of the last rank that had a batch. `then` is called on all ranks with
/// that rank, for everything else that has to follow the parameters (optimizer states). It is not called if all ranks
/// had equally many batches. Only the communication of the models themselves is matched: call no other collective in
/// `f`. Works on every backend.
/// Throws: UsageError (MU117) for a model that cannot wait for others; (MU118), on all ranks, if ranks run different
/// models at the same time, or were given different numbers of them; (MU119) if another rank's `f` threw; CommError
/// (MU050), on all ranks, if `f` calls another collective after a rank has left; and what `f` throws.
/// Collective: every rank of the group, with the same models.
void join_uneven_inputs(const comm::Communicator& group, const std::vector<std::shared_ptr<ManagedModel>>& models,
                        const std::function<void()>& f, const JoinOptions& options = {},
                        const std::function<void(int last_rank)>& then = nullptr);

/// The agreement between ranks that have batches left and those that have none: before a model communicates, all ranks
/// are told.
/// Thread safety: one thread at a time.
class JoinSession {
 public:
  /// `models` is the number of models; every rank must pass the same number.
  JoinSession(const comm::Communicator& group, int64_t models, const JoinOptions& options)
      : group_(group.internal("join_uneven_inputs")), models_(models), options_(options) {}

  /// What the active ranks do next; `active` is 0 if no rank is active.
  struct Next {
    JoinEvent event = JoinEvent::finished;
    int64_t model = -1;
    int active = 0;
    int root = 0;     ///< highest active rank
    int failed = -1;  ///< rank whose loop threw; -1: none
  };
  /// Collective. Throws: UsageError (MU118), (MU119); CommError (MU050) for a value that no rank sends.
  Next report(JoinEvent event, int64_t model);

  /// The divisor of the sum of gradients over ranks.
  double divisor(int active) const { return options_.divide_by_initial_world_size ? group_.size() : active; }
  /// Whether some rank ran out of batches while others had some left. Then last_rank() is the last rank that had some.
  bool uneven() const { return uneven_; }
  int last_rank() const { return last_rank_; }
  /// Whether all ranks know that the loop cannot continue.
  bool broken() const { return broken_; }

 private:
  /// `said`: the event, the model and the number of models that the rank has sent.
  void check(int rank, const int64_t* said);

  bool broken_ = false;
  comm::Communicator group_;
  int last_rank_ = 0;
  int64_t models_;
  JoinOptions options_;
  bool uneven_ = false;
};

/// The ranks over which a model averages gradients: all ranks of its group, or, in a JoinSession, those that have
/// batches left. Thread safety: the caller's.
class Participants {
 public:
  /// Requires: the group outlives this object.
  explicit Participants(const comm::Communicator& group) : group_(group) { include_all(); }

  /// The session that is told of each reduction, and the model's index in it; nullptr: none.
  void set_session(JoinSession* session, int64_t model) noexcept;
  bool in_session() const noexcept { return session_ != nullptr; }
  /// In a session: tells the other ranks that this one communicates gradients, and learns which of them do. Collective.
  void report();
  /// Another rank's session says who takes part.
  void set(int root, double divisor);
  void include_all() { set(/*root=*/0, group_.size()); }

  /// What a rank's gradient is multiplied by, as a number tensor.
  const at::Tensor& scale() const noexcept { return scale_; }
  /// The rank whose buffers are used after the reduction.
  int root() const noexcept { return root_; }

 private:
  const comm::Communicator& group_;
  JoinSession* session_ = nullptr;
  int64_t model_ = -1;  // its index in the session
  int root_ = 0;
  at::Tensor scale_;
};

}  // namespace muster::parallel
