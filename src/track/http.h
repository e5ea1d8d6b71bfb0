#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::track {

/// Passwords, tokens and the like, which must not appear in any message or file of Muster.
class Secrets {
 public:
  void add(std::string_view secret) {
    if (!secret.empty()) secrets_.emplace_back(secret);
  }
  /// The text with *** in place of each secret.
  std::string hidden_in(std::string text) const {
    for (const auto& secret : secrets_)
      for (auto at = text.find(secret); at != std::string::npos; at = text.find(secret, at + 3))
        text.replace(at, secret.size(), "***");
    return text;
  }

 private:
  std::vector<std::string> secrets_;
};

/// A server and the credentials for it.
struct HttpServer {
  std::string client_cert = {};  ///< file with the client certificate and key; empty: none
  bool insecure_tls = false;     ///< true: accept any certificate of the server
  std::string password = {};
  Secrets secrets = {};          ///< secrets of this struct, in every form that a message could contain
  std::string server_cert = {};  ///< file of trusted certificate authorities; empty: the system's
  std::string token = {};
  std::string uri = {};  ///< URI without user, password and trailing '/'
  std::string username = {};
};

struct HttpRequest {
  std::string body = {};            ///< JSON body
  std::filesystem::path file = {};  ///< file to send instead of a body
  std::string method = "GET";
  std::string path = {};  ///< path relative to the server's URI
};

struct HttpReply {
  std::string body = {};
  std::string failure = {};  ///< reason for a missing reply, which may contain secrets; empty if there is a reply
  long status = 0;
};

/// Sends requests to a server, one after another. It follows no redirects, so that only that server gets the
/// credentials, and never sends a request twice. Thread safety: one thread at a time.
class HttpConnection {
 public:
  /// A request ends after `timeout`, one with a file after 30 s without progress, and any request soon after `*stop` is
  /// set.
  /// Throws: ConfigError (MU532) without libcurl.
  HttpConnection(HttpServer server, std::chrono::milliseconds timeout, const std::atomic<bool>* stop);
  HttpConnection(HttpConnection&&) noexcept;
  ~HttpConnection();

  const HttpServer& server() const noexcept { return server_; }
  HttpReply send(const HttpRequest& request);

 private:
  struct Handles;

  HttpServer server_;
  std::chrono::milliseconds timeout_;
  const std::atomic<bool>* stop_;
  std::unique_ptr<Handles> handles_;
};

}  // namespace muster::track
