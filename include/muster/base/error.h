#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace muster {

/// Base class of all exceptions that the library throws.
/// The message tells what happened, where, and what to do. The id ("MU151") names a page under docs/errors/, which
/// `muster explain MU151` prints.
class Error : public std::runtime_error {
 public:
  Error(std::string_view id, const std::string& message)
      : std::runtime_error(std::string(id) + ": " + message), id_(id) {}
  /// The id of the error's page, such as "MU151".
  const std::string& id() const noexcept { return id_; }
  /// what() without the id.
  std::string message() const { return what() + id_.size() + 2; }

 private:
  std::string id_;
};

/// An invalid setting, found before anything starts.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A collective that failed. The message names rank, operation, sequence number, peer and elapsed time.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint or weight file that cannot be written or trusted. The message names file and tensor.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A rank that could not be started or that failed. The message names rank and exit code.
class LaunchError : public Error {
 public:
  using Error::Error;
};

/// A call that is refused because it would silently give wrong results.
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace muster
