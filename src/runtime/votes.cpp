#include <csignal>

#include "comm/agreement.h"
#include "runtime_state.h"

namespace muster::runtime {
namespace {

constexpr unsigned kTrigger = 1, kTerm = 2, kUser = 4, kStop = 8;
static_assert(kStop < 1U << ReductionRecord::kVotes);

unsigned any_of_ranks(const comm::Communicator& group, unsigned own) {
  comm::CoalescedAllReduce scalars(group, "votes");
  for (int v = 0; v < ReductionRecord::kVotes; ++v) scalars.add((own >> v) & 1U, comm::ReduceOp::max);
  scalars.run();
  unsigned all = 0;
  for (int v = 0; v < ReductionRecord::kVotes; ++v)
    if (scalars.result(v) > 0) all |= 1U << v;
  return all;
}

}  // namespace

unsigned RuntimeState::own_votes() noexcept {
  const int signal = flags_.received();
  return (flags_.trigger ? kTrigger : 0) | (flags_.stop ? kStop : 0) | (signal == SIGTERM ? kTerm : 0) |
         (signal == SIGUSR1 ? kUser : 0);
}

Votes RuntimeState::agreed_votes() {
  require_launched();
  auto votes = registry_->reductions().take_votes();
  if (!votes) {
    const unsigned own = own_votes();
    votes = {.all = group_.size() == 1 ? own : any_of_ranks(group_, own), .own = own};
  }
  if (votes->own & kTrigger) flags_.trigger = false;
  if (votes->own & kStop) flags_.stop = false;
  return {.signal = votes->all & kTerm   ? SIGTERM
                    : votes->all & kUser ? SIGUSR1
                                         : 0,
          .stop = (votes->all & kStop) != 0,
          .trigger = (votes->all & kTrigger) != 0};
}

void RuntimeState::forget_votes() {
  require_launched();
  registry_->reductions().take_votes();
  flags_.trigger = flags_.stop = false;
}

}  // namespace muster::runtime
