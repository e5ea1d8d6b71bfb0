#pragma once  // for other rooms

#include <cstddef>
#include <optional>
#include <utility>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// What a rank threw, in the form in which it is sent to the other ranks.
struct Failure {
  std::string id;              ///< id of an Error of the library; empty for other exceptions
  std::string message;         ///< what() without the id
  int rank = 0;                ///< the rank that threw, in the job
  bool of_checkpoint = false;  ///< whether it is a CheckpointError

  /// A text such as "MU202: the disk is full".
  std::string text() const { return id.empty() ? message : id + ": " + message; }
};

/// Throws the error of this rank after another rank has failed.
using Raise = std::function<void(const Failure&)>;

/// Throws: CheckpointError with the same id if the failure is a CheckpointError, else UsageError (MU176).
[[noreturn]] void raise_failure(const Failure& failure);

/// Runs f on every rank and returns the results of all ranks, in rank order. `label` says what the ranks do, and names
/// it to ranks that wait. Throws: what f threw on this rank, even if the group is lost meanwhile; else, if f threw on
/// other ranks, what `raise` throws for the first of them, which is reported to the launcher. Collective.
std::vector<std::string> all_gather_result(const Communicator& group, const std::string& label,
                                           const std::function<std::string()>& f, const Raise& raise = raise_failure);

/// Runs f on rank 0 and returns its result on all ranks. `label` and `raise` are those of all_gather_result(). Throws:
/// on rank 0, what f threw; on the other ranks, what `raise` throws. Collective.
std::string broadcast_result(const Communicator& group, const std::string& label, const std::function<std::string()>& f,
                             const Raise& raise = raise_failure);

/// Two texts that differ: rank 0's, and that of the first rank whose text is different.
struct Difference {
  std::string first, other;
  std::size_t rank = 0;  ///< the rank of `other`
};
/// Compares one text per rank; nullopt if all are equal. Equal texts give equal results on every rank.
std::optional<Difference> first_difference(const std::vector<std::string>& texts);

/// Reduces several numbers over all ranks in one message, like c10d's all_reduce_coalesced: add() each number, run(),
/// then read each result(). In a world of one nothing is sent. Thread safety: one thread at a time.
class CoalescedAllReduce {
 public:
  /// `label` names what is agreed on; ranks that agree on something else at that time get a CommError (MU050).
  CoalescedAllReduce(const Communicator& group, std::string label) : group_(group.internal(std::move(label))) {}

  /// Adds this rank's number; returns its index. The result is the sum, the maximum or the minimum over
  /// ranks, bit-identical on every rank. Requires: every rank adds the same numbers in the same order.
  std::size_t add(double mine, ReduceOp op);
  /// Exchanges the values of all ranks. Collective.
  void run();
  /// Requires: run() was called after add().
  double result(std::size_t i) const { return results_[i]; }

 private:
  Communicator group_;
  std::vector<double> mine_, results_;
  std::vector<ReduceOp> ops_;
};

/// Returns whether `mine` is true on any rank. `label` names the question, as in CoalescedAllReduce. Collective.
bool any_rank(const Communicator& group, std::string label, bool mine);

/// The name of the group's backend for tensors of a device; empty if there is none, and tensors are staged.
std::string device_backend_of(const Communicator& group);

/// Compares which operations these ranks have given to backends of devices so far, in all groups that they share. Such
/// operations start before ranks have agreed, so their results may be wrong, or never come, until this returns. Does
/// not wait for a device. Does nothing if the group has no backend of a device.
/// Throws: CommError (MU050) that names both sides, on every rank; the group has failed then. Collective.
/// Why: docs/decisions/0138-device-operations-are-compared-later.md.
void require_same_device_operations(const Communicator& group);

/// Converts a rank of the group to its rank in the job.
int job_rank(const Communicator& group, int rank);

/// Reports to the launcher, if there is one, that rank `rank` of the group caused the error that this rank is about to
/// throw: if that error ends the job, the launcher names that rank. A later operation that succeeds withdraws the
/// report. Operations of a group already report their errors about a lost rank. Nothing is reported if `rank` is this
/// rank itself.
void report_lost_rank(const Communicator& group, int rank, std::string_view reason);

/// The beginning and the end of the error message.
struct DisagreementText {
  std::string_view remedy = "build the same model on every rank, whatever its rank";
  std::string_view what = "ranks have built different models";
};

/// Throws: ConfigError (MU150) on every rank if ranks pass different lines. The message names the first line that
/// differs and both sides. Collective: one exchange of bytes.
void require_same_lines(const Communicator& group, const std::vector<std::string>& lines,
                        const DisagreementText& text = {});

}  // namespace muster::comm
