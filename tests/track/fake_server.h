#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace muster::track {

struct FakeRequest {
  std::string body, headers, method, path;
};

struct FakeReply {
  std::string body = "{}";
  bool drop = false;  ///< close the connection without a reply
  bool hang = false;  ///< never reply
  int status = 200;
};

/// A server of HTTP on this machine, whose thread answers one request after another as a function says.
class FakeServer {
 public:
  using Answer = std::function<FakeReply(const FakeRequest& request)>;

  /// Port 0: one that is free.
  explicit FakeServer(Answer answer, int port = 0) : answer_(std::move(answer)) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, plain, size) != 0 || ::listen(socket_, 16) != 0 || ::getsockname(socket_, plain, &size) != 0)
      throw std::runtime_error("no port for the fake server");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer() {
    stop_ = true;
    thread_.join();
    ::close(socket_);
  }

  int port() const { return port_; }
  std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  /// Whether there is something to read before the end.
  bool readable(int socket) const {
    for (pollfd one{.fd = socket, .events = POLLIN, .revents = 0}; !stop_;)
      if (::poll(&one, 1, 20) > 0) return true;
    return false;
  }

  void serve() {
    while (readable(socket_)) {
      const int connection = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
      serve_one(connection);
      ::close(connection);
    }
  }

  void serve_one(int connection) {
    FakeRequest request;
    if (!read_request(connection, request)) return;
    const auto reply = answer_(request);
    if (reply.hang) readable(connection);  // until the other end hangs up
    if (reply.hang || reply.drop) return;
    const auto text = "HTTP/1.1 " + std::to_string(reply.status) +
                      " Fake\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
                      std::to_string(reply.body.size()) + "\r\n\r\n" + reply.body;
    ::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
  }

  bool read_request(int connection, FakeRequest& request) const {
    std::string bytes;
    std::size_t head = 0, length = 0;
    while ((head = bytes.find("\r\n\r\n")) == std::string::npos || bytes.size() < head + 4 + length) {
      char piece[65536];
      if (!readable(connection)) return false;
      const auto count = ::recv(connection, piece, sizeof piece, 0);
      if (count <= 0) return false;
      bytes.append(piece, static_cast<std::size_t>(count));
      constexpr std::string_view kLength = "Content-Length: ";
      const auto at = bytes.find(kLength);
      if (at != std::string::npos && bytes.find("\r\n\r\n") != std::string::npos)
        length = std::stoul(bytes.substr(at + kLength.size()));
    }
    request.headers = bytes.substr(0, head);
    request.method = bytes.substr(0, bytes.find(' '));
    const auto path = bytes.find(' ') + 1;
    request.path = bytes.substr(path, bytes.find(' ', path) - path);
    request.body = bytes.substr(head + 4, length);
    return true;
  }

  Answer answer_;
  int socket_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace muster::track
