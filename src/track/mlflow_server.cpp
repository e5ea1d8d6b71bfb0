#include "mlflow_server.h"

#include <cctype>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::track {

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 128 && (std::isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~');
    if (plain || (keep_slashes && c == '/')) result += c;
    else (result += '%') += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return result;
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned byte = 0;
    const auto* digits = text.data() + at + 1;
    if (text[at] == '%' && at + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      result += static_cast<char>(byte);
      at += 2;
    } else {
      result += text[at];
    }
  }
  return result;
}

namespace {

/// The position of user and password in a URI, including the '@' after them.
struct Credentials {
  std::size_t begin = 0;
  std::size_t size = 0;
};

Credentials find_credentials(std::string_view uri) {
  const auto scheme = uri.find("://");
  const auto begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  const auto authority = uri.substr(begin, uri.find_first_of("/?#", begin) - begin);
  const auto at = authority.rfind('@');
  return {.begin = begin, .size = at == std::string_view::npos ? 0 : at + 1};
}

[[noreturn]] void refuse_uri(std::string_view uri, const std::string& reason) {
  throw ConfigError("MU530", "the tracker 'mlflow' cannot log to " + in_quotes(without_credentials(uri)) + ": " +
                                 reason + "; give the URI of an MLflow server, such as http://localhost:5000");
}

/// `uri` is a URI without its presumed credentials. If it still contains '@', the end of the password is unknown, so
/// the message shows nothing of it.
void check_credentials_end(std::string_view uri) {
  if (uri.find('@') == std::string_view::npos) return;
  throw ConfigError("MU530",
                    "the tracker 'mlflow' was given a URI with '@' behind its host; write '/', '?', '#' and '@' of a "
                    "user and a password as %2F, %3F, %23 and %40, such as http://anna:a%2Fb@localhost:5000");
}

/// Checks that the URI is that of an HTTP server.
void check_uri(std::string_view uri) {
  const auto scheme = lower_case(std::string(uri.substr(0, uri.find(':'))));
  if (uri.find("://") == std::string_view::npos || (scheme != "http" && scheme != "https"))
    refuse_uri(uri,
               "Muster logs to a server over HTTP, not to a folder, a database or Databricks (`mlflow server` "
               "starts one)");
  const auto plain = [](unsigned char c) { return c > ' ' && c < 127; };
  if (!std::all_of(uri.begin(), uri.end(), plain)) refuse_uri(uri, "it has spaces or characters beyond ASCII");
  if (uri.find_first_of("?#") != std::string_view::npos)
    refuse_uri(uri.substr(0, uri.find_first_of("?#")), "it has a query or a fragment");
  const auto host = uri.substr(uri.find("://") + 3);
  if (host.empty() || host[0] == '/' || host[0] == ':') refuse_uri(uri, "it names no host");
}

std::string base64(std::string_view text) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  for (std::size_t at = 0; at < text.size(); at += 3) {
    uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) result += at + i > text.size() ? '=' : kLetters[bits >> (18 - 6 * i) & 63];
  }
  return result;
}

bool read_switch(const Environment& variables, const char* name) {
  const auto text = variables.find(name).value_or("false");
  if (const auto on = read_bool(text)) return *on;
  throw ConfigError("MU530", std::string(name) + " is " + in_quotes(text) + "; it can be true or false");
}

void set_credentials(HttpServer& server, std::string_view user_and_password, const Environment& variables) {
  const auto variable = [&](const char* name) { return variables.find(name).value_or(""); };
  if (!user_and_password.empty()) {
    const auto colon = std::min(user_and_password.find(':'), user_and_password.size());
    server.username = percent_decoded(user_and_password.substr(0, colon));
    if (colon < user_and_password.size()) server.password = percent_decoded(user_and_password.substr(colon + 1));
    server.secrets.add(user_and_password);
    if (colon < user_and_password.size()) server.secrets.add(user_and_password.substr(colon + 1));
    else server.secrets.add(server.username);  // a single token
  } else if (variables.has("MLFLOW_TRACKING_USERNAME") && variables.has("MLFLOW_TRACKING_PASSWORD")) {
    server.username = variable("MLFLOW_TRACKING_USERNAME");
    server.password = variable("MLFLOW_TRACKING_PASSWORD");
  } else {
    server.token = variable("MLFLOW_TRACKING_TOKEN");
  }
  if (!server.username.empty()) server.secrets.add(base64(server.username + ":" + server.password));
  server.secrets.add(server.password);
  server.secrets.add(server.token);
}

}  // namespace

std::string without_credentials(std::string_view uri) {
  const auto [begin, size] = find_credentials(uri);
  return std::string(uri).erase(begin, size);
}

HttpServer mlflow_server(std::string_view given, const Environment& variables) {
  const auto uri = given.empty() ? variables.find("MLFLOW_TRACKING_URI").value_or("") : std::string(given);
  if (uri.empty())
    throw ConfigError("MU530",
                      "the tracker 'mlflow' does not know its server; set MLFLOW_TRACKING_URI=http://HOST:5000, or "
                      "give mlflow.tracking_uri (`mlflow server` starts one)");
  HttpServer server;
  server.uri = without_credentials(uri);
  check_credentials_end(server.uri);
  check_uri(server.uri);
  while (server.uri.ends_with('/')) server.uri.pop_back();
  const auto [begin, size] = find_credentials(uri);
  set_credentials(server, std::string_view(uri).substr(begin, size > 0 ? size - 1 : 0), variables);
  server.insecure_tls = read_switch(variables, "MLFLOW_TRACKING_INSECURE_TLS");
  server.server_cert = variables.find("MLFLOW_TRACKING_SERVER_CERT_PATH").value_or("");
  server.client_cert = variables.find("MLFLOW_TRACKING_CLIENT_CERT_PATH").value_or("");
  if (server.insecure_tls && !server.server_cert.empty())
    throw ConfigError("MU530",
                      "MLFLOW_TRACKING_INSECURE_TLS and MLFLOW_TRACKING_SERVER_CERT_PATH contradict each other; unset "
                      "one of them");
  return server;
}

}  // namespace muster::track
