#include "all_or_none.h"

#include <exception>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/detail/blame.h"
#include "muster/runtime/detail/process_control.h"

namespace muster::runtime {
namespace {

constexpr char kSaid = '+', kFailed = '!';
constexpr std::size_t kIdLength = 5;

[[noreturn]] void throw_failure_of(size_t rank, const std::string& failure) {
  if (failure.starts_with("MU2") && failure.size() > kIdLength + 2)
    throw CheckpointError(failure.substr(0, kIdLength),
                          formatted("{} (found by rank {})", failure.substr(kIdLength + 2), rank));
  throw UsageError("MU176", formatted("rank {} failed in what all ranks do together: {}", rank, failure));
}

}  // namespace

std::vector<std::string> all_or_none(const comm::Communicator& group, const std::string& what,
                                     const std::function<std::string()>& f) {
  std::exception_ptr failed;
  std::string said;
  const auto failure = outcome_of([&] { said = f(); }, failed);
  std::vector<std::string> all;
  try {
    all = group.as_library(what).all_gather_bytes(failed ? kFailed + failure : kSaid + said);
  } catch (...) {
    if (failed) std::rethrow_exception(failed);  // a lost group comes after one's own failure
    throw;
  }
  if (failed) std::rethrow_exception(failed);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].front() != kFailed) continue;
    const auto message = all[rank].substr(1);
    comm::blame(group, static_cast<int>(rank), message);
    throw_failure_of(rank, message);
  }
  for (auto& text : all) text.erase(0, 1);
  return all;
}

}  // namespace muster::runtime
