#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "muster/base/detail/environment.h"

namespace muster {

struct UploadOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(1);  ///< how long a server that cannot be used is asked
  std::string tracking_uri = {};                                ///< empty: that of the run
};

/// What an upload did.
struct UploadReport {
  int64_t lines = 0;    ///< of the file of waiting lines, each with what one call logged
  int64_t refused = 0;  ///< values and files that the server did not take
  std::string run_id = {};
  std::string tracking_uri = {};  ///< without user and password
};

/// Sends to MLflow what waits in the folder of a run whose program has ended, with user, password or token of MLflow's
/// variables, and takes the file of waiting lines away. What was sent before is not sent again. A run of which nobody
/// said how it ended was killed, and becomes so at the server.
/// Throws: UsageError (MU537) if the folder is that of no such run, or its program still writes; ConfigError (MU530,
/// MU532); Error (MU538) if the server cannot be used for as long as `timeout`: another call goes on from there.
UploadReport upload_run(const std::filesystem::path& folder, const UploadOptions& options,
                        const Environment& variables);

}  // namespace muster
