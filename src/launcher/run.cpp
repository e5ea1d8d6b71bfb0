#include "muster/launcher/detail/run.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "child.h"
#include "console.h"
#include "muster/base/detail/log.h"
#include "muster/base/detail/options_line.h"
#include "muster/base/error.h"
#include "muster/cluster/detail/listening_socket.h"
#include "muster/launcher/detail/devices.h"
#include "nodes.h"
#include "rank_environment.h"
#include "reaper.h"
#include "supervisor.h"
#include "watch.h"

namespace muster {
namespace launcher {
namespace {

/// The launcher itself uses the accelerator, too.
std::string options_for_ranks(const RunOptions& options) {
  if (options.accelerator.empty()) return options.options;
  auto texts = options::read_line(options.options, "option 'options' of the launcher");
  texts["accelerator"].text = options.accelerator;
  return options::write_line(texts);
}

Job plan_job(const RunOptions& options, const Environment& variables) {
  check_nodes({options.main_address, options.main_port, options.node_rank, options.nodes});
  if (options.threads < 0) throw ConfigError("MU036", "threads must not be negative");
  auto choice = choose_devices({options.accelerator, options.devices, count_accelerators(variables)});
  Job job;
  job.cores = count_cores();
  job.device_indices = choice.indices;
  job.node_rank = options.node_rank;
  job.nodes = options.nodes;
  job.options = options_for_ranks(options);
  job.processes = choice.count;
  job.secret = secret_of_job(options.secret_file, variables, options.nodes);
  job.threads = options.threads;
  place_store(options.main_address, options.main_port, job);
  return job;
}

/// stdin for the ranks: nothing. A terminal would stop ranks that read it, since each is in a process group of its own.
Descriptor no_input() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void start_ranks(const Job& job, Program program, const cluster::ListeningSocket& store, const RelayedSignals& signals,
                 const Reaper& reaper, Console& console, std::vector<Child>& children) {
  auto nothing = no_input();
  auto parent = Environment::of_process();
  children.reserve(static_cast<size_t>(job.processes));
  for (int local_rank = 0; local_rank < job.processes; ++local_rank) {
    auto ends = console.open_rank(job.rank_of(local_rank));
    bool gets_input = local_rank == 0 && !isatty(STDIN_FILENO);
    bool gets_store = job.rank_of(local_rank) == 0;
    program.environment = rank_environment(parent, job, local_rank);
    SpawnAttributes attributes;
    attributes.error_fd = ends.error.get();
    attributes.input_fd = gets_input ? -1 : nothing.get();
    attributes.keep_fd = gets_store ? store.fd() : -1;
    attributes.output_fd = ends.output.get();
    attributes.signal_mask = &signals.mask_before();
    children.emplace_back(job.rank_of(local_rank), program, attributes);
    reaper.watch(children.back().pid());
  }
}

}  // namespace
}  // namespace launcher

int run(const RunOptions& options, const std::vector<std::string>& command) {
  using namespace launcher;
  auto variables = Environment::of_process();
  if (command.empty()) throw ConfigError("MU031", "no program is given: muster run [options] PROGRAM ARGUMENTS...");
  Program program{command, {}, find_program(command.front(), variables)};
  Job job = plan_job(options, variables);
  std::signal(SIGPIPE, SIG_IGN);
  Reaper reaper;
  RelayedSignals signals;
  Console console({options.log_dir, options.prefix});
  auto store = open_store(job);
  std::vector<Child> children;
  start_ranks(job, program, store, signals, reaper, console, children);
  // Rank 0 alone has the socket now: should it end, the others are refused instead of waiting.
  store = cluster::ListeningSocket();
  Supervisor supervisor({&children, options.grace, {job.nodes, job.processes}, {}});
  return Watch({&console, &signals, &supervisor}).run(children);
}

}  // namespace muster
