#pragma once

#include "muster/base/trace.h"
#include "muster/dist/communicator.h"

#include <filesystem>
#include <memory>

namespace muster {

/// What profile() records and where it writes.
struct ProfileOptions {
  bool operators = false;                        ///< LibTorch's operators, too; they make the trace long
  std::filesystem::path path = "trace.json";     ///< written by the main rank
};

namespace runtime {

/// Records into `trace` from construction on: what the runtime's own scopes see, every collective of the group, and LibTorch's
/// operators where the options say so.
/// Thread safety: one thread at a time.
class Profile {
 public:
  /// Collective: ranks begin together.
  Profile(std::shared_ptr<Trace> trace, const dist::Communicator& group, const ProfileOptions& options);
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  ~Profile();

  /// Ends the recording and writes the spans of all ranks on one time line, as a Chrome trace. Collective.
  /// Ranks of one machine share its clock; those of another are laid so that all began together.
  /// Throws: CheckpointError (MU202), on every rank, if the file cannot be written.
  void write();

 private:
  void stop();

  std::shared_ptr<Trace> trace_;
  dist::Communicator group_;
  ProfileOptions options_;
  Trace::Clock::time_point begin_;
  uint64_t operator_callback_ = 0;   // 0: none
};

}  // namespace runtime
}  // namespace muster
