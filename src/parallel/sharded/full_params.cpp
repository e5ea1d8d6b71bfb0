#include <exception>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "parallel/sharded/sharded_state.h"

namespace muster::parallel {
namespace {

/// What this rank threw, or else an error that says what another one threw; null if none did. Collective.
std::exception_ptr shared_error(const comm::Communicator& group, const std::exception_ptr& own) {
  const auto run = [&] {
    if (own) std::rethrow_exception(own);
    return std::string();
  };
  const auto raise = [&](const comm::Failure& failure) {
    if (failure.id == "MU191") throw UsageError(failure.id, failure.message);  // it came from another group
    throw UsageError(
        "MU191", "nothing was written back by summon_full_params, since its function failed on another rank: rank " +
                     std::to_string(failure.rank) + ": " + failure.text());
  };
  try {
    comm::all_gather_result(group, "the end of summon_full_params", run, raise);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

void ShardedModel::State::begin_full_params(const FullParamsOptions& how) {
  std::scoped_lock lock(mutex);
  if (scope_ != FullScope::none || forward_depth_ > 0 || hook::current_backward() >= 0)
    throw UsageError("MU169",
                     "summon_full_params runs inside a forward, a backward or another summon_full_params of the model: "
                     "call it between steps");
  abandon_backward();
  unshard_scheduler_->reshard_all(/*keep_roots=*/false);
  name_gathers("summon_full_params");
  for (auto& unit : units) unit->begin_full_params(how.rank0_only, how.writeback);
  unshard_scheduler_->recount();
  scope_ = how.writeback ? FullScope::writes : FullScope::reads;
}

void ShardedModel::State::end_full_params(const FullParamsOptions& how, bool write_back) {
  std::scoped_lock lock(mutex);
  scope_ = FullScope::none;
  const bool updates = one_copy && write_back;
  const auto end = [&] {
    if (updates) one_copy->begin_update();
    for (auto& unit : units) unit->end_full_params(how, write_back);
    if (updates) one_copy->end_update();
  };
  updates ? in_update(end) : end();
  unshard_scheduler_->recount();
  buffers.trim();
}

void ShardedModel::State::with_full_params(const std::function<void()>& f, const FullParamsOptions& how) {
  begin_full_params(how);
  std::exception_ptr error;
  try {
    f();
  } catch (...) {
    error = std::current_exception();
  }
  error = shared_error(groups.replicas, shared_error(groups.shards, error));
  end_full_params(how, how.writeback && !error);
  if (error) std::rethrow_exception(error);
}

}  // namespace muster::parallel
