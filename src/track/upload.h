#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "muster/base/environment.h"

namespace muster {

struct UploadOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(1);  ///< time to retry an unavailable server
  std::string tracking_uri = {};                                ///< URI of the server; empty: the run's
};

/// The result of an upload.
struct UploadReport {
  int64_t lines = 0;    ///< number of waiting lines that were sent, each with the values of one call
  int64_t refused = 0;  ///< number of values and files that the server did not accept
  std::string run_id = {};
  std::string tracking_uri = {};  ///< URI without user and password
};

/// Sends the waiting lines in the folder of a run whose program has ended to MLflow, with user, password or token from
/// MLflow's variables, and removes the file of waiting lines. Lines that were sent before are not sent again. A run
/// without a final status was killed, and gets this status on the server.
/// Throws: UsageError (MU537) if the folder does not belong to such a run, or its program still writes; ConfigError
/// (MU530, MU532); Error (MU538) if the server is unavailable for `timeout`: another call continues from there.
UploadReport upload_run(const std::filesystem::path& folder, const UploadOptions& options,
                        const Environment& variables);

}  // namespace muster
