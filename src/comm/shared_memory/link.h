#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared_memory/segment.h"
#include "comm/wait_policy.h"

namespace muster::comm {

/// Of this machine since it started; empty where the system does not say.
std::string boot_id();
/// A new name for a socket in the private folder until somebody listens at it. `maker`: the number of the process.
std::string unnamed_socket(int maker);

/// A message between two ranks of one host: a line of text, and descriptors that the other process gets.
struct LinkMessage {
  std::string text;
  std::vector<Descriptor> descriptors;
};

/// A connection between two ranks of one host: it wakes, hands over descriptors, and ends when the other process does.
class Link {
 public:
  Link() = default;
  explicit Link(Descriptor socket) : socket_(std::move(socket)) {}
  /// Two ends. Throws: std::system_error.
  static std::pair<Link, Descriptor> make_pair();
  /// To a socket at that path. Throws: std::system_error.
  static Link connect(const std::string& path);

  int descriptor() const noexcept { return socket_.get(); }
  /// Wakes the other end, if it sleeps; never waits.
  void wake() const noexcept;
  /// Waits while the other end has too much to read. Throws: std::system_error; std::runtime_error at the deadline.
  void send(const std::string& text, const std::vector<int>& descriptors, TimePoint deadline) const;
  enum class Arrival { nothing, wake, message, end };
  /// What has come, without waiting. Descriptors for which this process has no room are missing from the message.
  Arrival take(LinkMessage& message) const noexcept;
  /// The next message; wakes are skipped. Throws: std::runtime_error if none comes until then.
  LinkMessage recv(TimePoint deadline) const;
  /// Whether the process at the other end belongs to this user.
  bool is_own_user() const noexcept;
  /// A descriptor that can be read from when the process at the other end has ended; none where the system has no such.
  Descriptor watch_process() const noexcept;

 private:
  Descriptor socket_;
};

/// Where other ranks of this host connect: a socket in the user's private folder.
class LinkListener {
 public:
  /// Removes sockets that ranks which ended left behind. Throws: std::system_error; LaunchError (MU069).
  explicit LinkListener(int size);
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Without a descriptor if nobody comes until then. Throws: std::system_error.
  Link accept(TimePoint deadline) const;

 private:
  Descriptor socket_;
  std::string path_;
};

}  // namespace muster::comm
