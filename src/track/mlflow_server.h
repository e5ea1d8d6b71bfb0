#pragma once

#include "http.h"
#include "muster/base/environment.h"

namespace muster::track {

/// The text encoded for a URI: all characters but letters, digits and -._~ become %XX, '/' too unless it is kept.
std::string percent_encoded(std::string_view text, bool keep_slashes = false);
/// The text with each %XX decoded.
std::string percent_decoded(std::string_view text);

/// The server of this URI, or of MLFLOW_TRACKING_URI if it is empty. Credentials are user and password of the URI,
/// otherwise MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, otherwise MLFLOW_TRACKING_TOKEN. MLflow's TLS
/// variables apply.
/// Throws: ConfigError (MU530), without secrets in the message, if there is no server or it cannot be used.
HttpServer mlflow_server(std::string_view uri, const Environment& variables);
/// The URI without user and password.
std::string without_credentials(std::string_view uri);

}  // namespace muster::track
