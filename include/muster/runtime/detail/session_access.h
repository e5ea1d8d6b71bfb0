#pragma once

namespace muster::comm {
class Communicator;
}

namespace muster::runtime {

class Session;

// What every set of a runtime's functions asks its session for.

/// The group of all ranks. Throws: UsageError (MU172) before launch() if several ranks were asked for.
const comm::Communicator& group_of(const Session& session);
/// These answer before launch(), too: one rank, and it is rank 0.
int rank_of(const Session& session);
int world_size_of(const Session& session);

}  // namespace muster::runtime
