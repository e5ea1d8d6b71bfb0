#pragma once

#include "muster/dist/communicator.h"

#include <functional>
#include <string>
#include <vector>

namespace muster::runtime {

/// Runs f on all ranks at the same time and returns what it said on each.
/// Throws: what f threw here; where it threw on other ranks only, the same of the first of them: CheckpointError with the id of what it
/// threw, if that is one of files (MU2nn), else UsageError (MU176). Collective: `what` names it to who waits.
std::vector<std::string> all_or_none(const dist::Communicator& group, const std::string& what, const std::function<std::string()>& f);

}  // namespace muster::runtime
