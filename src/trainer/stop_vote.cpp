#include "stop_vote.h"

#include "comm/agreement.h"
#include "muster/runtime/loop_access.h"

namespace muster::trainer {

void StopVote::request() {
  if (runtime_.world_size() == 1) agreed_ = true;
  else vote_to_stop(runtime_, requested_ = true);
}

void StopVote::begin() {
  agreed_ = requested_ = false;
  forget_votes(runtime_);
}

void StopVote::set(bool agreed) {
  agreed_ = agreed;
  vote_to_stop(runtime_, requested_ = false);
}

void StopVote::agree() {
  if (runtime_.world_size() == 1 || agreed_) return;
  comm::CoalescedAllReduce votes(runtime_.group(), "whether training stops");
  votes.add(requested_, comm::ReduceOp::max);
  votes.run();
  if (votes.result(0) > 0) set(true);
}

}  // namespace muster::trainer
