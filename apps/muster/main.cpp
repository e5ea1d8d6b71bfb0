#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "commands.h"
#include "muster/base/detail/options.h"
#include "muster/base/error.h"
#include "muster/version.h"

namespace muster::cli {
namespace {

constexpr int kUsage = 2;  // exit code for a usage error or a wrong setting

constexpr Command kCommands[] = {
    {"run", "start a program on several ranks", run, run_flags},
    {"launch", "start it with the flags and files of accelerate launch", launch, launch_flags},
    {"config", "write, show or update the configuration file of muster launch", configure, config_flags},
    {"submit", "write the job of a program for SLURM, Kubernetes or SageMaker, or submit it", submit, submit_flags},
    {"new", "write a small project that trains, to begin with", new_project},
    {"show", "list tensors, shapes, sizes and metadata of a file of weights", show, show_flags},
    {"convert", "convert weights between torch files and safetensors", convert, convert_flags},
    {"consolidate", "make one file of a checkpoint folder", consolidate, consolidate_flags},
    {"track", "send to MLflow what waits in the folder of a run", track, track_flags},
    {"explain", "print cause and remedy of an error, such as MU031", explain},
    {"env", "print versions, devices, threads and what is missing", print_env},
    {"test", "try everything once on this machine", self_test, test_flags},
    {"options", "print all options of `muster run` (or of a program: options) as a Markdown table", print_options},
    {"completion", "print the completion of the command line for bash, zsh or fish", complete},
    {"man", "print the manual page of muster or of a command", print_man_page},
};

std::string command_list() {
  std::string result;
  for (const auto& command : kCommands) {
    std::string name(command.name);
    result += "  " + name + std::string(13 - name.size(), ' ') + std::string(command.help) + "\n";
  }
  return result;
}

void print_help(std::FILE* to) {
  std::fprintf(to,
               "muster: one LibTorch training loop on any number of devices\n\n"
               "muster COMMAND [OPTIONS]\n\nCommands (each takes --help):\n%s\nOptions:\n"
               "  --help    print this\n  --version print the version\n",
               command_list().c_str());
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty()) {
    print_help(stderr);
    return kUsage;
  }
  const auto& name = arguments.front();
  if (name == "--version" || name == "-V") return std::puts("muster " MUSTER_VERSION) < 0;
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(stdout);
    return 0;
  }
  for (const auto& command : kCommands)
    if (name == command.name) return command.run({arguments.begin() + 1, arguments.end()});
  std::fprintf(stderr, "muster: there is no command '%s'; the known ones are:\n%s", name.c_str(),
               command_list().c_str());
  return kUsage;
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace muster::cli

int main(int count, char** values) {
  // A standard stream that the caller has closed must not become the next opened file: a rank would get that as its
  // stdin.
  for (int stream = open("/dev/null", O_RDWR); stream >= 0; stream = open("/dev/null", O_RDWR))
    if (stream > STDERR_FILENO) {
      close(stream);
      break;
    }
  try {
    return muster::cli::dispatch({values + 1, values + count});
  } catch (const muster::Error& error) {
    std::fprintf(stderr, "muster: %s\n(more: muster explain %s)\n", error.what(), error.id().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muster: %s\n", error.what());
  }
  return muster::cli::kUsage;
}
