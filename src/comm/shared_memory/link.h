#pragma once

#include "comm/shared_memory/segment.h"
#include "comm/wait_policy.h"

namespace muster::comm {

/// The boot id of this machine; empty if the system does not have one.
std::string boot_id();
/// A new name for a socket in the private folder until somebody listens on it. `maker`: the process's number.
std::string unnamed_socket(int maker);

/// A message between two ranks of one host: a line of text, and descriptors that are passed to the other process.
struct LinkMessage {
  std::string text;
  std::vector<Descriptor> descriptors;
};

/// A connection between two ranks of one host. It wakes the other end, passes descriptors, and closes when the other
/// process ends.
class Link {
 public:
  Link() = default;
  explicit Link(Descriptor socket) : socket_(std::move(socket)) {}
  /// Makes two connected ends. Throws: std::system_error.
  static std::pair<Link, Descriptor> make_pair();
  /// Connects to the socket at that path. Throws: std::system_error.
  static Link connect(const std::string& path);

  int descriptor() const noexcept { return socket_.get(); }
  /// Wakes the other end if it sleeps. Never waits.
  void wake() const noexcept;
  /// Sends a message. Waits while the other end has too much to read. Throws: std::system_error; std::runtime_error at
  /// the deadline.
  void send(const std::string& text, const std::vector<int>& descriptors, TimePoint deadline) const;
  enum class Arrival { nothing, wake, message, end };
  /// Takes what has arrived, without waiting. Descriptors for which this process has no room are missing from the
  /// message.
  Arrival take(LinkMessage& message) const noexcept;
  /// The next message; wake-ups are skipped. Throws: std::runtime_error if none arrives before the deadline.
  LinkMessage recv(TimePoint deadline) const;
  /// Whether the process at the other end belongs to this user.
  bool is_own_user() const noexcept;
  /// A descriptor that becomes readable when the process at the other end has ended; none if the system has no such
  /// descriptors.
  Descriptor watch_process() const noexcept;

 private:
  Descriptor socket_;
};

/// The socket to which other ranks of this host connect, in the user's private folder.
class LinkListener {
 public:
  /// Also removes sockets that ranks left behind when they ended. Throws: std::system_error; LaunchError (MU069).
  explicit LinkListener(int size);
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Accepts a connection; a Link without a descriptor if nobody connects before the deadline. Throws:
  /// std::system_error.
  Link accept(TimePoint deadline) const;

 private:
  Descriptor socket_;
  std::string path_;
};

}  // namespace muster::comm
