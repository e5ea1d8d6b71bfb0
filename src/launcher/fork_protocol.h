#pragma once

#include <cstddef>
#include <cstdint>

/// The protocol between the launcher and a fork server, over a socket that preserves message boundaries.
///
/// The launcher executes the program with cluster::kForkServer in its environment. The first message is already in the
/// socket: the job's token, then the numbers of the descriptors that the program inherits. The program replies `ready`
/// or `refused`. For each round the launcher sends the number of ranks with the read end of a pipe, and then for each
/// rank its variables with its descriptors; it gets a reply `forked` for each rank, and `adopted` once all of them are
/// children of the launcher. A rank continues when it reads a byte from the pipe, and ends if the pipe is closed
/// without one.
namespace muster::launcher {

/// A note in the file of a program that can become a fork server. The version changes with anything in this header,
/// since the launcher and the program may come from different builds.
struct ForkNote {
  static constexpr std::uint32_t kType = 1, kVersion = 1;

  std::uint32_t name_bytes = sizeof name - 1;  // the file pads the name to a multiple of 4
  std::uint32_t version_bytes = sizeof version;
  std::uint32_t type = kType;
  char name[8] = {'M', 'u', 's', 't', 'e', 'r', 0, 0};
  std::uint32_t version = kVersion;
};

struct ForkReply {
  enum class Kind : std::int32_t { ready, refused, forked, adopted, failed };

  Kind kind = Kind::failed;
  std::int32_t number = 0;  ///< id of the forked process, or errno
  char reason[256] = {};    ///< reason of a refusal, zero-terminated
};

/// Limits of a message to the fork server: size in bytes, and number of descriptors.
inline constexpr std::size_t kForkBytes = std::size_t{1} << 14, kForkDescriptors = 8;

/// The variables of a rank are zero-terminated words that start with one of these characters. A word "=NAME=VALUE" sets
/// a variable, "-NAME" removes it, and "#NAME" sets it to the number of the next descriptor after the three standard
/// streams, which stays open across exec.
inline constexpr char kSetVariable = '=', kUnsetVariable = '-', kDescriptorVariable = '#';

}  // namespace muster::launcher
