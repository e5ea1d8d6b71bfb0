#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace muster::testing {

/// In a new process: it ends with `parent`, at once if that has ended, and what it prints goes to `output`.
void attach_to(pid_t parent, int output);

/// A process with these arguments and environment, whose output goes to `output`, as a child of this one; nothing where
/// no fork server can make it.
std::optional<pid_t> fork_from_server(const std::vector<std::string>& arguments,
                                      const std::vector<std::string>& environment, int output);

}  // namespace muster::testing
