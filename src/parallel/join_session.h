#pragma once

#include "muster/dist/communicator.h"
#include "muster/parallel/options.h"

#include <cstdint>
#include <string>
#include <vector>

namespace muster::parallel {

/// What a model is about to communicate.
enum class JoinEvent : int64_t { finished, gradients, failed };

/// A model whose communication other ranks can take part in without batches of their own.
class Joinable {
 public:
  virtual ~Joinable() = default;
  /// Announces from now on what it communicates; nullptr: no more.
  virtual void set_session(class JoinSession* session, int64_t model) = 0;
  /// Takes part in what the active ranks have announced; sums of gradients are divided by `divisor`. Collective.
  virtual void shadow(JoinEvent event, int root, double divisor) = 0;
  /// Why it cannot be joined after all, in words that follow "since"; empty if it can.
  virtual std::string obstacle() const { return {}; }
  /// Everybody's parameters and buffers become those of the root. Collective.
  virtual void share_values_of(int root) = 0;
};

/// The agreement between ranks that have batches left and those that have none: before a model communicates, all ranks are told.
/// Thread safety: one thread at a time.
class JoinSession {
 public:
  /// `models` is their number, for which every rank must give the same.
  JoinSession(const dist::Communicator& group, int64_t models, const JoinOptions& options)
      : group_(group.as_library("join_uneven_inputs")), models_(models), options_(options) {}

  /// What the ranks that are still active do next; `active` is 0 if none is.
  struct Next {
    JoinEvent event = JoinEvent::finished;
    int64_t model = -1;
    int active = 0;
    int root = 0;       ///< the highest active rank
    int failed = -1;    ///< a rank whose loop threw
  };
  /// Collective. Throws: UsageError (MU118), (MU119); CommError (MU050) for what no rank says.
  Next tell(JoinEvent event, int64_t model);

  /// By what the sum of gradients over ranks is divided.
  double divisor(int active) const { return options_.divide_by_initial_world_size ? group_.size() : active; }
  /// Some rank has run out while others had batches left; the last of these then.
  bool uneven() const { return uneven_; }
  int last_rank() const { return last_rank_; }
  /// All ranks know that it cannot go on.
  bool broken() const { return broken_; }

 private:
  /// What one rank said: event, model, number of models.
  void check(int rank, const int64_t* said);

  bool broken_ = false;
  dist::Communicator group_;
  int last_rank_ = 0;
  int64_t models_;
  JoinOptions options_;
  bool uneven_ = false;
};

}  // namespace muster::parallel
