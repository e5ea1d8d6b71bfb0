#include "rank_votes.h"

#include <csignal>

#include "comm/agreement.h"

namespace muster::runtime {
namespace {

constexpr unsigned kTrigger = 1, kTerm = 2, kUser = 4, kStop = 8;
static_assert(kStop < 1U << parallel::Piggyback::kBits);

unsigned any_of_ranks(const comm::Communicator& group, unsigned own) {
  comm::CoalescedAllReduce scalars(group, "votes");
  for (int v = 0; v < parallel::Piggyback::kBits; ++v) scalars.add((own >> v) & 1U, comm::ReduceOp::max);
  scalars.run();
  unsigned all = 0;
  for (int v = 0; v < parallel::Piggyback::kBits; ++v)
    if (scalars.result(v) > 0) all |= 1U << v;
  return all;
}

}  // namespace

bool RankVotes::catch_signals() {
  const base::Lock lock(mutex_);
  if (signals_) return false;
  signals_ = std::make_unique<SignalWatch>(std::vector<int>{SIGTERM, SIGUSR1});
  return true;
}

void RankVotes::release_signals() {
  const base::Lock lock(mutex_);
  signals_.reset();
}

int RankVotes::received() const {
  const base::Lock lock(mutex_);
  return signals_ ? signals_->received() : 0;
}

void RankVotes::forget_signal(int signal) {
  const base::Lock lock(mutex_);
  if (signals_) signals_->forget(signal);
}

unsigned RankVotes::own() const {
  const int signal = signals_ ? signals_->received() : 0;
  return (trigger_ ? kTrigger : 0) | (stop_ ? kStop : 0) | (signal == SIGTERM ? kTerm : 0) |
         (signal == SIGUSR1 ? kUser : 0);
}

unsigned RankVotes::send() {
  const base::Lock lock(mutex_);
  const unsigned votes = own();
  sent_ |= votes;
  return votes;
}

void RankVotes::receive(unsigned any) {
  const base::Lock lock(mutex_);
  arrived_ = arrived_.value_or(0) | any;
}

Votes RankVotes::agree(const comm::Communicator& group) {
  unsigned mine = 0;
  std::optional<unsigned> all;
  {
    const base::Lock lock(mutex_);
    all = std::exchange(arrived_, std::nullopt);
    mine = std::exchange(sent_, 0);
    if (!all) mine = own();
  }
  if (!all) all = group.size() == 1 ? mine : any_of_ranks(group, mine);
  if (mine & kTrigger) trigger_ = false;
  if (mine & kStop) stop_ = false;
  return {.signal = *all & kTerm   ? SIGTERM
                    : *all & kUser ? SIGUSR1
                                   : 0,
          .stop = (*all & kStop) != 0,
          .trigger = (*all & kTrigger) != 0};
}

void RankVotes::forget() {
  const base::Lock lock(mutex_);
  arrived_.reset();
  sent_ = 0;
  trigger_ = stop_ = false;
}

}  // namespace muster::runtime
