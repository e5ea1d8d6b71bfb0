#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "secrets.h"

namespace muster::track {

/// A server, and how to show it who asks.
struct HttpServer {
  std::string client_cert = {};  ///< file of the certificate and key to show; empty: none
  bool insecure_tls = false;     ///< take any certificate of the server
  std::string password = {};
  Secrets secrets = {};          ///< what is here, in every form in which a message could hold it
  std::string server_cert = {};  ///< file of the authorities to trust; empty: the system's
  std::string token = {};
  std::string uri = {};  ///< without user and password, and without '/' at its end
  std::string username = {};
};

struct HttpRequest {
  std::string body = {};            ///< JSON
  std::filesystem::path file = {};  ///< in place of a body
  std::string method = "GET";
  std::string path = {};  ///< behind the server's URI
};

struct HttpReply {
  std::string body = {};
  std::string failure = {};  ///< why there is none, which may hold secrets; empty: there is one
  long status = 0;
};

/// Sends requests to a server, one after another. It follows no redirection, so that credentials go to that server
/// alone, and sends no request twice. Thread safety: one thread at a time.
class HttpConnection {
 public:
  /// A request ends after `timeout`, one with a file after 30 s without progress, and any soon after `*stop` is set.
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
