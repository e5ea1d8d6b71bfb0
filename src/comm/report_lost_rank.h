#pragma once  // for other rooms

#include <string_view>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// Converts a rank of the group to its rank in the job.
int job_rank(const Communicator& group, int rank);

/// Reports to the launcher, if there is one, that rank `rank` of the group caused the error that this rank is about to
/// throw: if that error ends the job, the launcher names that rank. A later operation that succeeds withdraws the
/// report. Operations of a group already report their errors about a lost rank. Nothing is reported if `rank` is this
/// rank itself.
void report_lost_rank(const Communicator& group, int rank, std::string_view reason);

}  // namespace muster::comm
