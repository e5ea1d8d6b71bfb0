#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/log.h"
#include "base/text.h"
#include "cluster/listening_socket.h"
#include "cluster/secret.h"
#include "commands.h"
#include "launcher/devices.h"
#include "launcher/run.h"
#include "muster/base/error.h"
#include "muster/cluster/cluster.h"
#include "muster/version.h"
#include "parse.h"

namespace muster::cli {
namespace {

constexpr const char* kProbe = "muster-probe";
constexpr std::chrono::seconds kPatience{5};  // time-out of each call of nvidia-smi

/// The path of the program that links LibTorch, which this one does not; both are in one folder.
std::optional<std::string> find_probe() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kProbe;
  return std::filesystem::exists(path) ? std::optional(path.string()) : std::nullopt;
}

void line(const char* name, const std::string& value) { std::printf("%-14s %s\n", name, value.c_str()); }

/// Which processes could join this process's job, or jobs started from here.
std::string who_may_join(const ClusterEnvironment& cluster) {
  try {
    if (cluster::read_secret(Environment::of_process()).is_given())
      return "ranks with the secret that is given here, and nobody else";
  } catch (const Error& error) {
    return error.what();
  }
  if (cluster.launcher == LauncherKind::none)
    return "on one node the ranks that muster run starts, by a secret it makes; on several whoever reaches the store: "
           "no secret is given (MUSTER_SECRET)";
  if (cluster.rendezvous == RendezvousKind::none) return "nobody: a world of one";
  if (cluster.rendezvous == RendezvousKind::file)
    return "processes of this user: the ranks rendezvous through a file that only this user can open";
  const bool stays = cluster::is_loopback(cluster.main_address) && !cluster.store_is_external;
  return log::str(stays ? "every user of this host" : "whoever reaches it", ", at ", cluster.main_address, " port ",
                  cluster.main_port, ": no secret is given (MUSTER_SECRET)");
}

/// The entry, with the device that it refers to.
std::string shown_entry(const std::string& entry, const std::vector<std::string>& devices) {
  for (const auto& device : devices)
    if (const auto uuid = device.find(" (UUID: " + entry); uuid != std::string::npos)
      return log::str(entry, " (", device.substr(0, uuid), ")");
  return entry;
}

std::string visible_devices(const std::vector<std::string>& devices) {
  try {
    const auto entries = launcher::visible_devices(Environment::of_process());
    return entries ? listed(*entries, [&](const auto& entry) { return shown_entry(entry, devices); }) : "all";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Prints NVIDIA's GPUs as their driver reports them.
void print_gpus() {
  const auto gpus = launcher::report_gpus(kPatience);
  line("driver", gpus.driver.empty() ? "none of NVIDIA's" : gpus.driver);
  for (const auto& device : gpus.devices) line("gpu", device);
  for (const auto& link : gpus.links) line("link", link);
  for (const auto& problem : gpus.problems) line("not known", problem);
  line("visible", visible_devices(gpus.devices));
}

int execute(std::string path, std::string argument) {
  std::fflush(stdout);
  char* const arguments[] = {path.data(), argument.data(), nullptr};
  pid_t child;
  int status = 0;
  if (const int error = posix_spawn(&child, path.c_str(), nullptr, nullptr, arguments, environ))
    throw LaunchError("MU034", log::str("cannot start ", path, ": ", std::generic_category().message(error)));
  if (waitpid(child, &status, 0) < 0) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct SelfTest {
  int ranks = 2;
  std::string accelerator = "cpu";
};

void declare(CLI::App& app, SelfTest& wanted) {
  app.add_option("--devices", wanted.ranks, "how many ranks [2]")->check(CLI::PositiveNumber);
  app.add_option("--accelerator", wanted.accelerator, "on what: cpu, cuda, or auto, which takes an accelerator [cpu]");
}

/// Accelerators are tried only on request, since there may be fewer than ranks.
void print_where(const SelfTest& wanted) {
  const int present = launcher::count_accelerators(Environment::of_process());
  if (wanted.accelerator != "cpu" || present == 0) return;
  std::printf(
      "muster test: on the CPU; 'muster test --accelerator auto --devices %d' tries the %d accelerator%s of this "
      "machine\n",
      present, present, present == 1 ? "" : "s");
  std::fflush(stdout);
}

}  // namespace

int print_env(const Arguments& arguments) {
  CLI::App app("Prints versions, devices, threads and backends of this machine, and what is missing.", "muster env");
  if (parse(app, arguments)) return 0;
  utsname system{};
  uname(&system);
  line("muster", MUSTER_VERSION);
  line("compiler", __VERSION__);
  line("system",
       log::str(system.sysname, " ", system.release, " ", system.machine, ", ", std::thread::hardware_concurrency(),
                " cores, ", sysconf(_SC_PHYS_PAGES) / 1024 * sysconf(_SC_PAGESIZE) / 1024 / 1024, " GiB"));
  const auto cluster = read_cluster_environment();
  line("started by", cluster.launcher == LauncherKind::none
                         ? "nobody: a program run here has one rank"
                         : log::str(to_string(cluster.launcher), ": rank ", cluster.rank, " of ", cluster.world_size));
  line("may join", who_may_join(cluster));
  print_gpus();
  const auto probe = find_probe();
  if (!probe) {
    line("libtorch", log::str("unknown: ", kProbe, " is missing beside muster"));
    return 1;
  }
  return execute(*probe, "env");
}

std::vector<options::Description> test_flags() {
  CLI::App app;
  SelfTest wanted;
  declare(app, wanted);
  return described(app);
}

int self_test(const Arguments& arguments) {
  CLI::App app("Tries launch, collectives, data, training and weights on this machine; takes a few seconds.",
               "muster test");
  SelfTest wanted;
  declare(app, wanted);
  if (parse(app, arguments)) return 0;
  const auto probe = find_probe();
  if (!probe)
    throw LaunchError(
        "MU031", log::str("cannot execute '", kProbe, "': it is missing beside muster; build or install it again"));
  print_where(wanted);
  RunOptions options;
  options.accelerator = wanted.accelerator;
  options.devices = std::to_string(wanted.ranks);
  options.prefix = false;
  return muster::run(options, {*probe, "test"});
}

}  // namespace muster::cli
