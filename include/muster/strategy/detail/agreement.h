#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "muster/comm/communicator.h"

namespace muster::strategy {

/// Answers several questions over all ranks in one message: ask() each question, run(), then read each answer().
/// In a world of one nothing is sent. Thread safety: one thread at a time.
class Agreement {
 public:
  /// `label` names what is agreed on; ranks that agree on something else at the same time get a CommError (MU050).
  Agreement(const comm::Communicator& group, std::string label) : group_(group.as_library(std::move(label))) {}

  /// Adds a question with this rank's value; returns its number. The answer is the sum, the maximum or the minimum over
  /// ranks, bit-identical on every rank. Requires: every rank asks the same questions in the same order.
  std::size_t ask(double mine, comm::ReduceOp op);
  /// Exchanges the values of all ranks. Collective.
  void run();
  /// Requires: run() was called after ask().
  double answer(std::size_t question) const { return answers_[question]; }

 private:
  comm::Communicator group_;
  std::vector<double> mine_, answers_;
  std::vector<comm::ReduceOp> ops_;
};

/// Returns whether `mine` is true on any rank; `label` as above. Collective.
bool any_rank(const comm::Communicator& group, std::string label, bool mine);

}  // namespace muster::strategy
