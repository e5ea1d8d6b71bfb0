#include "comm/group_options.h"

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

// In hours. Much longer timeouts would overflow a clock that counts nanoseconds.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(200'000);

}  // namespace

void check_timeouts(const GroupOptions& options) {
  for (const auto limit : {options.rendezvous_timeout, options.timeout})
    if (limit.count() <= 0 || limit > kLongestTimeout)
      throw ConfigError("MU327",
                        formatted("the time-out of the group is {} ms, but one above 0 and up to 200000 hours is "
                                  "wanted; give for example std::chrono::minutes(10)",
                                  limit.count()));
}

GroupIdentity identity_of(const std::string& backend, const GroupOptions& options) {
  GroupIdentity identity;
  identity.backend = backend;
  identity.timeout = options.timeout;
  return identity;
}

}  // namespace muster::comm
