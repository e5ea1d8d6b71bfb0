#pragma once  // for other rooms

#include <string_view>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// The rank in the job of a rank of the group.
int job_rank(const Communicator& group, int rank);

/// Reports to the launcher, if there is one, that the error which this rank is about to throw was caused by rank `rank`
/// of the group: if that error ends the job, the launcher names that rank. A later operation that succeeds withdraws
/// the report. Errors about a lost rank that a group's operations throw are reported already. Nothing is reported if
/// `rank` is this rank itself.
void report_lost_rank(const Communicator& group, int rank, std::string_view reason);

}  // namespace muster::comm
