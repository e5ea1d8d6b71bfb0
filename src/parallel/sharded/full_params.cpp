#include <exception>

#include "muster/base/error.h"
#include "muster/comm/detail/blame.h"
#include "parallel/sharded/sharded_state.h"

namespace muster::parallel {
namespace {

std::string text_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what()[0] ? thrown.what() : "an exception without words";
  } catch (...) {
    return "an exception of unknown type";
  }
}

/// What some rank threw, with its rank; empty if none did. Collective.
std::string first_failure(const comm::Communicator& group, const std::string& own) {
  if (group.size() == 1) return own;
  const auto all = group.as_library("the end of summon_full_params").all_gather_bytes(own);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    comm::blame(group, static_cast<int>(r), all[r]);
    return "rank " + std::to_string(r) + " of group " + group.name() + ": " + all[r];
  }
  return {};
}

}  // namespace

void ShardedModel::State::begin_full_params(const FullParamsOptions& how) {
  std::scoped_lock lock(mutex);
  if (scope_ != FullScope::none || forward_depth_ > 0 || hook::current_backward() >= 0)
    throw UsageError("MU169",
                     "summon_full_params runs inside a forward, a backward or another summon_full_params of the model: "
                     "call it between steps");
  abandon_backward();
  residency_->reshard_all(/*keep_roots=*/false);
  name_gathers("summon_full_params");
  for (auto& unit : units) unit->begin_full_params(how.rank0_only);
  residency_->recount();
  scope_ = how.writeback ? FullScope::writes : FullScope::reads;
}

void ShardedModel::State::end_full_params(const FullParamsOptions& how, bool write_back) {
  std::scoped_lock lock(mutex);
  scope_ = FullScope::none;
  for (auto& unit : units) unit->end_full_params(how.rank0_only, write_back);
  residency_->recount();
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
  std::string failure;
  try {
    failure = first_failure(groups.replicas, first_failure(groups.shards, text_of(error)));
  } catch (...) {
    end_full_params(how, /*write_back=*/false);
    if (error) std::rethrow_exception(error);
    throw;
  }
  end_full_params(how, how.writeback && failure.empty());
  if (error) std::rethrow_exception(error);
  if (!failure.empty())
    throw UsageError(
        "MU191",
        "nothing was written back by summon_full_params, since its function failed on another rank: " + failure);
}

}  // namespace muster::parallel
