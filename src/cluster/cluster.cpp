#include "muster/cluster/cluster.h"

#include "base/log.h"
#include "base/text.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"
#include "report.h"

namespace muster {
namespace {

using cluster::present;

// Installs the terminate handler when the program is loaded, since an option may be refused before main() creates a
// runtime. It is in this file because every multi-rank program links it.
[[maybe_unused]] const bool kTerminateHandlerInstalled = cluster::install_terminate_handler();

/// Throws for variables of launchers that Muster does not support.
void refuse_unknown_launcher(const Environment& variables) {
  static constexpr std::pair<const char*, const char*> kMarkers[] = {
      {"PMIX_RANK", "a PMIx launcher that gives no world size"},
      {"PALS_RANKID", "PALS (Cray's mpiexec or aprun)"},
      {"ALPS_APP_PE", "ALPS (Cray's aprun)"},
      {"FLUX_TASK_RANK", "Flux"},
      {"PRTE_RANK", "PRRTE"},
  };
  for (const auto& [variable, launcher] : kMarkers)
    if (variables.has(variable))
      throw ConfigError("MU023",
                        log::str("variable ", variable, " looks as if ", launcher,
                                 " started this program, which is not understood; set RANK, WORLD_SIZE, LOCAL_RANK, "
                                 "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each rank, or unset ",
                                 variable, " to run alone"));
}

/// Throws if RANK and WORLD_SIZE are not both set but one of them, or a local variable, is: this is always a mistake.
void refuse_half_set(const Environment& variables) {
  using namespace cluster;
  auto found = present(variables, {kRank, kWorldSize, kLocalRank, kLocalWorldSize});
  if (found.empty()) return;
  throw ConfigError("MU020",
                    log::str(joined(found), found.size() == 1 ? " is" : " are",
                             " set, but not both RANK and WORLD_SIZE; set both, or none of them to run alone"));
}

bool pmi_set_by_slurm(const Environment& variables) {
  return cluster::find_slurm(variables) == cluster::SlurmPresence::task &&
         variables.find("PMI_RANK") == variables.find("SLURM_PROCID") &&
         variables.find("PMI_SIZE") == variables.find("SLURM_NTASKS");
}

ClusterEnvironment alone(const Environment& variables) {
  ClusterEnvironment result;
  auto tasks = cluster::read_number(variables, "SLURM_NTASKS", 1);
  if (cluster::find_slurm(variables) == cluster::SlurmPresence::shell && tasks.value_or(1) > 1)
    result.note = log::str("SLURM_NTASKS is ", *tasks,
                           ", but this program was not started by srun: it runs alone; "
                           "start it with srun for ",
                           *tasks, " ranks");
  return result;
}

/// Reads the first family of variables that is set.
ClusterEnvironment read_launcher(const Environment& variables) {
  using namespace cluster;
  refuse_sagemaker_libraries(variables);
  // Muster's launcher removes torchrun's variables from its ranks' environment, so if both are set, torchrun is the
  // inner launcher.
  if (variables.has("TORCHELASTIC_RUN_ID")) return read_torchrun(variables);
  if (variables.has(kJob)) return read_muster(variables);
  if (variables.has(kRank) && variables.has(kWorldSize)) return read_plain(variables);
  if (variables.has(kWorldSize) && variables.has(kLocalRank)) return read_lightning(variables);
  if (variables.has(kWorldSize) && variables.has(kCompletionIndex)) return read_indexed_job(variables);
  refuse_half_set(variables);
  if (!present(variables, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}).empty()) return read_open_mpi(variables);
  if (!present(variables, {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}).empty()) return read_mvapich(variables);
  if (!present(variables, {"PMI_RANK", "PMI_SIZE"}).empty() && !pmi_set_by_slurm(variables)) return read_pmi(variables);
  if (find_slurm(variables) == SlurmPresence::task) return read_slurm(variables);
  if (variables.has("JSM_NAMESPACE_RANK")) return read_jsrun(variables);
  refuse_unknown_launcher(variables);
  if (variables.has("PET_NNODES")) return read_kubeflow(variables);
  if (in_sagemaker(variables)) return read_sagemaker(variables);
  return alone(variables);
}

}  // namespace

std::string_view to_string(LauncherKind kind) {
  constexpr std::string_view kNames[] = {"none", "muster", "torchrun", "environment", "open_mpi",  "mvapich",
                                         "pmi",  "slurm",  "lsf",      "kubernetes",  "sagemaker", "custom"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(LauncherKind::custom) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

ClusterEnvironment read_cluster_environment(const Environment& variables) {
  auto found = read_launcher(variables);
  if (found.launcher != LauncherKind::none) found.store_prefix = log::str("muster/", found.restart_count);
  return found;
}

ClusterEnvironment read_cluster_environment(const Environment& variables, const ClusterReader& reader) {
  auto found = reader ? reader(variables) : std::nullopt;
  if (!found) return read_cluster_environment(variables);
  cluster::check_custom(*found);
  if (found->launcher == LauncherKind::none) found->launcher = LauncherKind::custom;
  return *std::move(found);
}

ClusterEnvironment read_cluster_environment() { return read_cluster_environment(Environment::of_process()); }

}  // namespace muster
