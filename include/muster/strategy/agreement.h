#pragma once

#include "muster/dist/communicator.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace muster::strategy {

/// What ranks settle together in one message: ask() all there is to ask, settle(), read the answers.
/// In a world of one nothing is sent. Thread safety: one thread at a time.
class Agreement {
 public:
  /// `label` says what is settled; ranks that settle something else meanwhile get a CommError (MU050).
  Agreement(const dist::Communicator& group, std::string label) : group_(group.as_library(std::move(label))) {}

  /// This rank's part of a question; its number. The answer is the sum, the maximum or the minimum over ranks, the same
  /// bits on every rank. Requires: every rank asks the same questions in the same order.
  std::size_t ask(double mine, dist::ReduceOp op);
  /// Collective.
  void settle();
  /// Requires: settle() came after ask().
  double answer(std::size_t question) const { return answers_[question]; }

 private:
  dist::Communicator group_;
  std::vector<double> mine_, answers_;
  std::vector<dist::ReduceOp> ops_;
};

/// Whether it is so on any rank; `label` as above. Collective.
bool any_rank(const dist::Communicator& group, std::string label, bool mine);

}  // namespace muster::strategy
