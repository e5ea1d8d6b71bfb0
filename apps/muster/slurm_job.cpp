#include <string>

#include "job.h"
#include "shell_word.h"

namespace muster::cli {
namespace {

std::string two(long long number) { return (number < 10 ? "0" : "") + std::to_string(number); }

/// sbatch counts in minutes, so the time is rounded up.
std::string time_text(std::chrono::seconds time) {
  const long long all = time.count();
  return std::to_string(all / 86400) + "-" + two(all / 3600 % 24) + ":" + two(all / 60 % 60) + ":" + two(all % 60);
}

/// A directive line of the script. sbatch removes quotes as a shell does.
std::string directive(const std::string& name, const std::string& value = "") {
  return "#SBATCH --" + name + (value.empty() ? "" : "=" + shell_word(value)) + "\n";
}

std::string node_resources(const Job& job) {
  auto text = directive("nodes", std::to_string(job.nodes)) + directive("ntasks-per-node", std::to_string(job.devices));
  if (job.gpus > 0) text += directive("gpus-per-node", std::to_string(job.gpus));
  if (job.cpus > 0) text += directive("cpus-per-task", std::to_string(job.cpus));
  if (!job.memory.empty()) text += directive("mem", job.memory);
  if (job.time.count() > 0) text += directive("time", time_text(job.time));
  return text;
}

std::string queue(const Job& job) {
  std::string text;
  for (const auto& [name, value] :
       {std::pair("partition", job.partition), std::pair("account", job.account), std::pair("qos", job.qos)})
    if (!value.empty()) text += directive(name, value);
  return text;
}

/// The tasks get SIGUSR1, not this script; the Trainer saves and requeues the job under the same number.
std::string requeuing(const Job& job) {
  if (!job.requeue) return directive("no-requeue");
  return directive("signal", "USR1@" + std::to_string(job.signal_before.count())) + directive("requeue") +
         directive("open-mode", "append");
}

std::string body(const Job& job) {
  std::string text;
  for (const auto& line : job.setup) text += line + "\n";
  for (const auto& [name, value] : job.environment) text += "export " + name + "=" + shell_word(value) + "\n";
  if (job.cpus > 0) text += "export OMP_NUM_THREADS=" + std::to_string(job.cpus) + "\n";
  if (job.nodes * job.devices > 1)
    text +=
        "# By this the ranks of the job authenticate each other; every start has a new one.\n"
        "export MUSTER_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n";
  // srun does not take the number of cores per task from sbatch.
  text += "\nexec srun --kill-on-bad-exit=1" + (job.cpus > 0 ? " --cpus-per-task=" + std::to_string(job.cpus) : "");
  for (const auto& word : job.program) text += " " + shell_word(word);
  return text + "\n";
}

}  // namespace

void check_slurm(const Job& job) {
  for (const auto& line : job.sbatch)
    if (!line.starts_with("--") || line.find('\n') != std::string::npos)
      refuse_flag_value("--sbatch", "'" + line + "' is not an option of sbatch; write it as --sbatch=--exclusive");
}

std::string slurm_script(const Job& job) {
  auto text = "#!/bin/bash\n" + directive("job-name", job.name) + directive("output", "%x-%j.out") + queue(job) +
              node_resources(job) + requeuing(job);
  for (const auto& line : job.sbatch) text += "#SBATCH " + line + "\n";
  return text + "\n" + body(job);
}

}  // namespace muster::cli
