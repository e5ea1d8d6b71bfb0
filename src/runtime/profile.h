#pragma once

#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"
#include "muster/track/trace.h"

namespace muster::runtime {

/// Runs f and writes the spans of all ranks on one time line, as a Chrome trace. During the call it records into
/// `trace` the runtime's own scopes, every collective of the group and, if the options say so, LibTorch's operators.
/// The track "memory" shows the memory use of each rank's device. Ranks on the main rank's machine share its clock;
/// clocks of different machines are aligned at the start of the profile. Collective.
/// Throws: what f throws; CheckpointError (MU202) on the main rank if the file cannot be written; UsageError (MU176) on
/// the others.
void record_profile(const std::function<void()>& f, Trace& trace, const comm::Communicator& group,
                    const ProfileOptions& options);

}  // namespace muster::runtime
