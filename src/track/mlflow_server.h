#pragma once

#include <string>
#include <string_view>

#include "http.h"
#include "muster/base/environment.h"

namespace muster::track {

/// The server of this URI, or of MLFLOW_TRACKING_URI if it is empty. Credentials are user and password of the URI,
/// otherwise MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, otherwise MLFLOW_TRACKING_TOKEN. MLflow's TLS
/// variables apply.
/// Throws: ConfigError (MU530), without secrets in the message, if there is no server or it cannot be used.
HttpServer mlflow_server(std::string_view uri, const Environment& variables);
/// The URI without user and password.
std::string without_credentials(std::string_view uri);

}  // namespace muster::track
