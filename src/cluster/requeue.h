#pragma once  // for other rooms

#include <string>

#include "muster/base/detail/environment.h"

namespace muster::cluster {

/// How SLURM calls this process's job, "123" or, of a job array, "120_3"; empty outside of SLURM.
std::string slurm_job(const Environment& variables);

/// Queues the job again by `scontrol requeue JOB`, found in PATH; waits for it, at most a minute.
/// Returns an empty text, or what went wrong: no scontrol, its exit code with what it said, or the minute.
std::string requeue_slurm_job(const std::string& job);

}  // namespace muster::cluster
