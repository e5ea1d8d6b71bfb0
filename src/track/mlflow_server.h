#pragma once

#include <string>
#include <string_view>

#include "http.h"
#include "muster/base/detail/environment.h"

namespace muster::track {

/// The server of this URI, or of MLFLOW_TRACKING_URI if it is empty; with user and password of the URI, else those of
/// MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, else MLFLOW_TRACKING_TOKEN; and MLflow's variables on TLS.
/// Throws: ConfigError (MU530), which shows no key, if there is none or it cannot be used.
HttpServer mlflow_server(std::string_view uri, const Environment& variables);
/// The URI without user and password.
std::string without_credentials(std::string_view uri);

}  // namespace muster::track
