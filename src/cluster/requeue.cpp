#include "cluster/requeue.h"

#include <chrono>
#include <csignal>

#include "base/log.h"
#include "base/run_program.h"
#include "base/spelling.h"

namespace muster::cluster {

std::string slurm_job(const Environment& variables) {
  const auto array = variables.find("SLURM_ARRAY_JOB_ID"), task = variables.find("SLURM_ARRAY_TASK_ID");
  if (array && task) return *array + "_" + *task;
  return variables.find("SLURM_JOB_ID").value_or("");
}

std::string requeue_slurm_job(const std::string& job) {
  const auto scontrol = run_program({"scontrol", "requeue", job}, std::chrono::minutes(1));
  if (!scontrol.problem.empty()) return log::str("scontrol ", scontrol.problem);
  // When SLURM requeues a job it ends every process of it, including scontrol.
  if (scontrol.succeeded() || scontrol.signal == SIGTERM) return "";
  return log::str("scontrol requeue failed: ", trimmed(scontrol.output, " \t\n"));
}

}  // namespace muster::cluster
