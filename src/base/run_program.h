#pragma once  // for other rooms

#include <chrono>
#include <string>
#include <vector>

namespace muster {

/// How a program ended, and what it said. A plain value.
struct CompletedProgram {
  int exit_code = 0;         ///< unless a signal ended it
  bool is_missing = false;   ///< there is no such program in PATH
  std::string output = {};   ///< stdout and stderr together, of at most a MiB
  std::string problem = {};  ///< it did not start, or not end in time: a text that goes on after its name
  int signal = 0;

  bool succeeded() const noexcept { return problem.empty() && exit_code == 0 && signal == 0; }
};

/// Runs a program that is found in PATH, without input, until it ends; after the time-out it is killed, with what it
/// has started. Returns at most a second after the time-out, even if the system cannot end the program.
/// Requires: nobody else waits for the children of this process. Thread-safe.
CompletedProgram run_program(std::vector<std::string> words, std::chrono::milliseconds timeout);

}  // namespace muster
