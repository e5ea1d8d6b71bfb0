#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/wait_policy.h"

namespace muster::comm {

/// Every message starts with a frame of this size, so that it can be received before its size is known.
inline constexpr std::size_t kFrameBytes = 4096;

struct Frame {
  alignas(64) std::array<std::byte, kFrameBytes> bytes;
};

/// Why a transport failed; the group turns it into a CommError.
struct TransportFailure {
  enum class Kind { closed, timeout, aborted };
  Kind kind;
  int peer;            ///< the rank waited for; -1 if none
  std::string detail;  ///< the cause for `aborted`, the system's message for `closed`
};

/// Bytes between the ranks of one group.
/// Thread safety: one thread at a time, except abort().
class Transport {
 public:
  /// A transfer in progress. Its destructor ensures that the memory is no longer used.
  class Transfer {
   public:
    virtual ~Transfer() = default;
    /// Throws: TransportFailure.
    virtual void wait(TimePoint deadline) = 0;
  };
  using Request = std::unique_ptr<Transfer>;

  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Sends a frame without waiting for the receiver. Frames of a pair arrive in order. Throws: TransportFailure.
  virtual void send_frame(int to, const Frame& frame, TimePoint deadline) = 0;
  /// Throws: TransportFailure.
  virtual void recv_frame(int from, Frame& frame, TimePoint deadline) = 0;

  /// A block is payload that does not fit into its frame. It matches a receive of the same size and channel, in order.
  /// A block without a matching receive does no harm, so a receive may be posted before the headers agreed.
  /// Requires: bytes > 0, at most kMaxBlockBytes; channel 0 or 1.
  virtual Request send(int to, const void* data, std::size_t bytes, int channel) = 0;
  virtual Request recv(int from, void* data, std::size_t bytes, int channel) = 0;

  /// Ends all current and later waits here, and sends the cause to the peers. Does not block. Thread safety: any
  /// thread.
  virtual void abort(const std::string& cause) noexcept = 0;
  /// After abort(): closes the connections, so that peers that wait for a block notice. Called on the thread of the
  /// operations.
  virtual void close() noexcept = 0;

  /// Collective: a transport among some of the ranks, for members only. Throws: CommError.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

inline constexpr std::size_t kMaxBlockBytes = std::size_t{1} << 29;

}  // namespace muster::comm
