#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/comm/communicator.h"

namespace muster::runtime {

/// Runs f on all ranks at the same time and returns its result on each.
/// Throws: what f threw here. If it threw on other ranks only, the error of the first of them: CheckpointError with the
/// same id, if it is one of files (MU2nn), else UsageError (MU176). Collective: `what` names it to ranks that wait.
std::vector<std::string> all_or_none(const comm::Communicator& group, const std::string& what,
                                     const std::function<std::string()>& f);

}  // namespace muster::runtime
