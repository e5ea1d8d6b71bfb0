#pragma once  // for other rooms

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/options.h"
#include "muster/tree/state.h"

namespace muster::parallel {

class JoinSession;

/// What a program does for the ranks of join_uneven_inputs() beside its loop. Any function may be empty.
struct JoinCallbacks {
  /// The session begins in which this rank may announce steps of the program; nullptr: it has ended.
  std::function<void(JoinSession* session)> open = {};
  /// The active ranks have begun to communicate gradients of a sharded model; this rank has no loss for it.
  std::function<void()> before_gradients = {};
  /// The active ranks have announced this step of the program, and this rank makes it, too.
  std::function<void(const State& step)> follow = {};
  /// Called on all ranks at the end with the last rank that had a batch, unless all had equally many: for everything
  /// that has to follow that rank's parameters (optimizer states).
  std::function<void(int last_rank)> then = {};
};

/// Runs `f`, a loop over batches whose number may differ between ranks. A rank whose `f` has returned takes part in
/// what the others still communicate for these models, with zero gradients, until `f` has returned on all ranks. If a
/// model is sharded, it also makes the steps of the program that the others announce, on its shards. Then every rank
/// has the parameters and buffers of the last rank that had a batch. Only the communication of the models themselves,
/// and what the program announces, is matched: call no other collective in `f`. Works on every backend.
/// Throws: UsageError (MU117) for a model that cannot wait for others; (MU118), on all ranks, if ranks run different
/// models or steps at the same time, or were given different numbers of models; (MU119) if another rank's `f` threw;
/// CommError (MU050), on all ranks, if `f` calls another collective after a rank has left; and what `f` throws.
/// Collective: every rank of the group, with the same models.
void join_uneven_inputs(const comm::Communicator& group, const std::vector<std::shared_ptr<ManagedModel>>& models,
                        const std::function<void()>& f, const JoinOptions& options = {},
                        const JoinCallbacks& callbacks = {});

/// The agreement between ranks that have batches left and those that have none: before a model communicates, all ranks
/// are told.
/// Why: docs/decisions/0173-ranks-without-batches-follow.md.
/// Thread safety: one thread at a time.
class JoinSession {
 public:
  /// `models`: equally many on every rank. Requires: they outlive this object.
  JoinSession(const comm::Communicator& group, const std::vector<Joinable*>& models, const JoinOptions& options);

  /// Says what this rank does next, and learns what the active ranks do. Ranks without batches get `more`, if it is
  /// defined. Requires: `more` is defined on all active ranks or on none.
  /// Collective. Throws: UsageError (MU118), (MU119); CommError (MU050) for a value that no rank sends.
  JoinStep report(JoinEvent event, int64_t model, int64_t detail = 0, const at::Tensor& more = {});
  /// Announces a step of the program, which is equal on all active ranks, as its hash is. Requires: makes_steps().
  void announce(const State& step, int64_t hash);
  /// Whether ranks without batches make the steps of the others, since a model is sharded.
  bool makes_steps() const noexcept { return makes_steps_; }

  const comm::Communicator& group() const noexcept { return group_; }
  /// Whether some rank ran out of batches while others had some left. Then last_rank() is the last rank that had some.
  bool uneven() const { return uneven_; }
  int last_rank() const { return last_rank_; }
  /// Whether all ranks know that the loop cannot continue.
  bool broken() const { return broken_; }

 private:
  /// What a rank says: five integers in one message.
  struct Said {
    int64_t event, model, detail, models, bytes;
  };
  static constexpr int64_t kNumbers = sizeof(Said) / sizeof(int64_t);

  void check(int rank, const Said& said);
  void require_same(int first, const Said& a, int second, const Said& b);

  bool broken_ = false;
  comm::Communicator group_;
  int last_rank_ = 0;
  int64_t models_;
  JoinOptions options_;
  bool makes_steps_;
  bool uneven_ = false;
};

/// The ranks over which a model averages gradients: all its ranks, or, in a JoinSession, those that have batches left.
/// Thread safety: the caller's.
class Participants {
 public:
  explicit Participants(int ranks) : ranks_(ranks) { include_all(); }

  /// The session that is told of what the model communicates, and the model's index in it; nullptr: none.
  void set_session(JoinSession* session, int64_t model) noexcept;
  bool in_session() const noexcept { return session_ != nullptr; }
  /// In a session: tells the other ranks that this one communicates gradients, and learns which of them do. Collective.
  void report(const at::Tensor& more = {});
  /// In a session: tells the other ranks what this one communicates next. Collective.
  void announce(JoinEvent event, int64_t detail = 0) const;
  /// Another rank's session says who takes part.
  void set(const JoinStep& step);
  void include_all();

  double divisor() const noexcept { return divisor_; }
  /// What a rank's gradient is multiplied by, as a number tensor.
  const at::Tensor& scale() const noexcept { return scale_; }
  /// The rank whose buffers are used after the reduction.
  int root() const noexcept { return root_; }
  /// In a session: all its ranks, of which root() is one; else nullptr.
  const comm::Communicator* group() const noexcept { return group_; }

 private:
  const int ranks_;
  JoinSession* session_ = nullptr;
  int64_t model_ = -1;  // its index in the session
  int root_ = 0;
  double divisor_ = 1;
  const comm::Communicator* group_ = nullptr;
  at::Tensor scale_;
};

}  // namespace muster::parallel
