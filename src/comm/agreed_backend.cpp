#include "comm/agreed_backend.h"

#include <exception>
#include <vector>

#include "base/listing.h"
#include "comm/backend_calls.h"
#include "comm/error_text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using Clock = std::chrono::steady_clock;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr const char* kOutcome = "outcome";
constexpr const char* kAllHave = "all have it";

std::string made_key(int rank) { return formatted("made/{}", rank); }

std::string rank_of(const BackendAgreement& agreement) {
  return formatted("rank {} of {}", agreement.rank, agreement.group);
}

/// The outcome that was written first counts for all ranks.
std::string written(const BackendAgreement& agreement, const std::string& outcome) {
  return agreement.store->compareSet(kOutcome, "", outcome);
}

std::string failure_of(const BackendAgreement& agreement, const std::exception& error) {
  const auto [id, text] = split_message(short_error_text(error.what(), 500), "MU575");
  const auto failure = formatted("{}: {} could not make {}: {}", id, rank_of(agreement), agreement.what, text);
  try {
    return written(agreement, failure);
  } catch (const std::exception&) {
    return failure;  // the store is lost, and the others will find that out
  }
}

std::string time_out_of(const BackendAgreement& agreement) {
  std::vector<int> missing;
  for (int rank = 0; rank < agreement.size; ++rank)
    if (!agreement.store->check({made_key(rank)})) missing.push_back(rank);
  if (missing.empty()) return written(agreement, kAllHave);
  return written(
      agreement,
      formatted("MU575: {} waited {:.0f} s until all ranks had {}; not yet: {}. Do they wait in its factory, "
                "or have they ended?",
                rank_of(agreement), std::chrono::duration<double>(agreement.timeout).count(), agreement.what,
                joined(missing)));
}

std::string outcome_of_all(const BackendAgreement& agreement) {
  auto& store = *agreement.store;
  const auto until = Clock::now() + agreement.timeout;
  std::string reason;
  try {
    store.set(made_key(agreement.rank), "1");
    if (store.add("count", 1) == agreement.size) return written(agreement, kAllHave);
    store.wait({kOutcome}, agreement.timeout);
    return store.get_to_str(kOutcome);
  } catch (const Error&) {  // a wrong signature
    throw;
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  try {
    if (Clock::now() >= until) return time_out_of(agreement);
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  throw CommError("MU058", formatted("{} lost the store while it waited until all ranks had {}: {}", rank_of(agreement),
                                     agreement.what, short_error_text(reason)));
}

}  // namespace

BackendPtr make_on_all_ranks(const BackendAgreement& agreement, const std::function<BackendPtr()>& make) {
  BackendPtr made;
  std::string outcome;
  try {
    made = make();
  } catch (const std::exception& error) {
    outcome = failure_of(agreement, error);
  }
  if (outcome.empty()) outcome = outcome_of_all(agreement);
  if (outcome == kAllHave) return made;
  if (made) abort_backend(*made);  // its destructor may wait for ranks that have no backend
  const auto [id, text] = split_message(outcome, "MU575");
  throw CommError(id, text);
}

}  // namespace muster::comm
