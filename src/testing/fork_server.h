#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace muster::testing {

// Why: docs/decisions/0159-ranks-of-tests-are-forks.md.

/// Called in a new process: makes it end when `parent` ends, or at once if that has ended, and sends its output to
/// `output`.
void attach_to(pid_t parent, int output);

/// Forks a process with these arguments and environment as a child of this one; its output goes to `output`. nullopt
/// where no fork server can do so.
std::optional<pid_t> fork_from_server(const std::vector<std::string>& arguments,
                                      const std::vector<std::string>& environment, int output);

}  // namespace muster::testing
