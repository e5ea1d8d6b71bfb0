#include <charconv>
#include <fstream>

#include "reading.h"

namespace muster::cluster {
namespace {

// Lightning's values, so that both libraries derive the same port from a job.
constexpr int kFirstPort = 15000;
constexpr int kPorts = 10000;
constexpr int kPortWithoutJob = 12910;

/// The leading digits of a job id: PBS has ids such as "1234.server" or "1234[5].server".
std::optional<int> number_of_job(const std::optional<std::string>& id) {
  int number = 0;
  if (!id || std::from_chars(id->data(), id->data() + id->size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::string> first_host_in_file(const Environment& variables, std::string_view name) {
  const auto path = variables.find(name);
  const auto hosts = path ? read_host_file(*path) : std::vector<std::string>();
  return hosts.empty() ? std::nullopt : std::optional(hosts.front());
}

/// The first host of LSF's short list, such as "alpha 4 beta 4".
std::optional<std::string> first_word(const std::optional<std::string>& list) {
  return list ? std::optional(list->substr(0, list->find(' '))) : std::nullopt;
}

}  // namespace

int port_of_job(std::optional<int> job, int step) {
  return job ? kFirstPort + (*job % kPorts + step % kPorts) % kPorts : kPortWithoutJob;
}

std::vector<std::string> read_host_file(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> hosts;
  for (std::string host; file >> host;) hosts.push_back(host);
  return hosts;
}

std::optional<HostAndPort> first_host_of_job(const Environment& variables) {
  if (auto host = first_host_in_file(variables, "PBS_NODEFILE"))
    return HostAndPort{*host, port_of_job(number_of_job(variables.find("PBS_JOBID")))};
  auto host = first_host_in_file(variables, "LSB_DJOB_RANKFILE");
  if (!host) host = first_word(variables.find("LSB_MCPU_HOSTS"));
  if (host) return HostAndPort{*host, port_of_job(number_of_job(variables.find("LSB_JOBID")))};
  for (auto name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (auto list = variables.find(name))
      return HostAndPort{first_host(*list, name), port_of_job(read_number(variables, "SLURM_JOB_ID"))};
  return std::nullopt;
}

}  // namespace muster::cluster
