#include "http.h"
#include "muster/base/error.h"

// For builds without the headers of libcurl.
namespace muster::track {

struct HttpConnection::Handles {};

HttpConnection::HttpConnection(HttpServer, std::chrono::milliseconds timeout, const std::atomic<bool>* stop)
    : timeout_(timeout), stop_(stop) {
  throw ConfigError("MU532",
                    "the tracker 'mlflow' needs libcurl, and this Muster was built without its header; install it "
                    "(Debian: libcurl4-openssl-dev) and build Muster again, or log with 'jsonl' or 'csv'");
}

HttpConnection::HttpConnection(HttpConnection&&) noexcept = default;
HttpConnection::~HttpConnection() = default;

HttpReply HttpConnection::send(const HttpRequest&) { return {}; }

}  // namespace muster::track
