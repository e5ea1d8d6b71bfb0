#pragma once  // for other rooms

#include <string>

#include "muster/base/environment.h"

namespace muster::cluster {

/// SLURM's id of this process's job: "123", or "120_3" for a job array; empty outside of SLURM.
std::string slurm_job(const Environment& variables);

/// Requeues the job with `scontrol requeue JOB`, found in PATH, and waits for at most a minute. Returns an empty text
/// on success, otherwise the problem: no scontrol, its exit code and output, or the time-out.
std::string requeue_slurm_job(const std::string& job);

}  // namespace muster::cluster
