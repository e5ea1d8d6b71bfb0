#include "hand_in.h"

#include <sys/wait.h>

#include <csignal>
#include <cstdio>

#include "muster/base/error.h"

namespace muster::cli {

void hand_in(const std::string& command, const std::string& text) {
  const auto program = command.substr(0, command.find(' '));
  constexpr int kNotFound = 127;  // exit code of a shell for a missing command
  // Without SIGPIPE, the exit code of a command that ends before it has read everything gives the reason.
  std::signal(SIGPIPE, SIG_IGN);
  std::fflush(stdout);
  auto* pipe = popen(command.c_str(), "w");
  if (pipe == nullptr) throw UsageError("MU496", "cannot start " + program + "; write the job to a file with --out");
  std::fwrite(text.data(), 1, text.size(), pipe);
  const int status = pclose(pipe);
  if (status == 0) return;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  throw UsageError(
      "MU496",
      code == kNotFound
          ? program + " is not installed here; write the job to a file with --out and submit it elsewhere"
          : "'" + command + "' has failed with exit code " + std::to_string(code) + "; its own message stands above");
}

}  // namespace muster::cli
