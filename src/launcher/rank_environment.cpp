#include "rank_environment.h"

#include <unistd.h>

#include <algorithm>

#include "base/options_text.h"
#include "base/random_word.h"
#include "base/variables.h"

namespace muster::launcher {
namespace {

/// Removes the variables of outer launchers, which would contradict Muster's.
void forget_other_launchers(Environment& result) {
  const Environment before = result;
  for (const auto& [name, value] : before.variables())
    if (name.starts_with("TORCHELASTIC_") || name.starts_with("ROLE_")) result.unset(name);
  for (auto name : {cluster::kJobStart, cluster::kStoreFd, cluster::kDeviceIndex, cluster::kReportFd, cluster::kSecret,
                    cluster::kSecretFile})
    result.unset(name);
}

}  // namespace

Environment rank_environment(const Environment& parent, const Job& job, int local_rank) {
  Environment result = parent;
  forget_other_launchers(result);
  auto set = [&](const char* name, int value) { result.set(name, std::to_string(value)); };
  result.set(cluster::kJob, job.name);
  if (job.start > 0) result.set(cluster::kJobStart, std::to_string(job.start));
  set(cluster::kRank, job.rank_of(local_rank));
  set(cluster::kWorldSize, job.world_size());
  set(cluster::kLocalRank, local_rank);
  set(cluster::kLocalWorldSize, job.processes);
  set(cluster::kNodeRank, job.node_rank);
  set(cluster::kNodes, job.nodes);
  set(cluster::kRestartCount, job.restarts);
  set(cluster::kTorchRestartCount, job.restarts);
  result.set(cluster::kMainAddress, job.main_address);
  set(cluster::kMainPort, job.main_port);
  if (job.store_fd >= 0 && job.rank_of(local_rank) == 0) set(cluster::kStoreFd, job.store_fd);
  if (job.secret.is_given()) result.set(cluster::kSecret, job.secret.reveal());
  if (!job.device_indices.empty()) set(cluster::kDeviceIndex, job.device_indices.at(static_cast<size_t>(local_rank)));
  if (!job.visible_devices.empty()) {
    result.set(cluster::kVisibleDevices, job.visible_devices.at(static_cast<size_t>(local_rank)));
    set(cluster::kDeviceIndex, 0);
  }
  if (!job.options.empty()) result.set(options::kLineVariable, job.options);
  if (job.threads > 0 || !result.has("OMP_NUM_THREADS"))
    set("OMP_NUM_THREADS", job.threads > 0 ? job.threads : std::max(1, job.cores / job.processes));
  return result;
}

std::string new_job_name() { return std::to_string(getpid()) + "-" + random_word(12); }

}  // namespace muster::launcher
