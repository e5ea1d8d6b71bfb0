#pragma once

#include <string_view>

#include "muster/dist/communicator.h"

namespace muster::dist {

/// Tells the launcher, where there is one, that the error which this rank is about to throw is about rank `rank` of the group: should
/// the job end by it, the launcher names that rank. An operation that is begun later and succeeds takes it back.
/// What the operations of a group throw about a lost rank is told already. Of this rank itself nothing is told.
void blame(const Communicator& group, int rank, std::string_view reason);

}  // namespace muster::dist
