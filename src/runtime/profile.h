#pragma once

#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"
#include "muster/track/trace.h"

namespace muster::runtime {

/// From construction on, records into `trace` the runtime's own scopes, every collective of the group and, if the
/// options say so, LibTorch's operators.
/// Thread safety: one thread at a time.
class Profile {
 public:
  /// Collective: ranks begin the profile together.
  Profile(std::shared_ptr<Trace> trace, const comm::Communicator& group, const ProfileOptions& options);
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  ~Profile();

  /// Ends the recording and writes the spans of all ranks on one time line, as a Chrome trace. The track "memory" shows
  /// the memory use of each rank's device. Ranks on the main rank's machine share its clock; clocks of different
  /// machines are aligned at the start of the profile. Collective.
  /// Throws: CheckpointError (MU202) on the main rank if the file cannot be written; UsageError (MU176) on the others.
  void write();

 private:
  void stop();

  std::shared_ptr<Trace> trace_;
  comm::Communicator group_;
  ProfileOptions options_;
  Trace::Clock::time_point begin_;
  uint64_t operator_callback_ = 0;  // handle of LibTorch's callback; 0: none
};

}  // namespace muster::runtime
