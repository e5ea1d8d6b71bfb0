#pragma once  // for other rooms

#include <chrono>
#include <string>
#include <vector>

namespace muster {

/// How a program ended, and its output. A plain value.
struct CompletedProgram {
  int exit_code = 0;         ///< exit status, unless a signal ended the program
  bool is_missing = false;   ///< true if PATH has no such program
  std::string output = {};   ///< at most 1 MiB of stdout and stderr, interleaved
  std::string problem = {};  ///< why it did not start or did not end in time: text to follow the program's name
  int signal = 0;

  bool succeeded() const noexcept { return problem.empty() && exit_code == 0 && signal == 0; }
};

/// Runs a program found in PATH, without input, until it ends. After the time-out it is killed with all that it
/// started. Returns at most one second after the time-out, even if the system cannot end the program.
/// Requires: nobody else waits for the children of this process. Thread-safe.
CompletedProgram run_program(std::vector<std::string> words, std::chrono::milliseconds timeout);

}  // namespace muster
