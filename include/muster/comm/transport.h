#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/comm/options.h"
#include "muster/comm/rendezvous.h"

/// For programs that carry messages between ranks themselves, over a custom network or messaging library. A transport
/// moves bytes. Everything else in a communicator runs over it as over gloo, with identical bits: headers that detect
/// ranks that disagree, dtypes, sums in rank order, time-outs, groups, and the first cause of a failure. See
/// docs/decisions/0157-a-transport-of-the-programs-own.md.
namespace muster::comm {

/// The size of a frame, in bytes. Every message starts with a frame, so that it can be received before its size is
/// known. A transport does not interpret frames; zeros at the end of a frame need not travel.
inline constexpr std::size_t kFrameBytes = 4096;

struct Frame {
  alignas(64) std::array<std::byte, kFrameBytes> bytes;
};

/// The size of the largest block, in bytes (512 MiB).
inline constexpr std::size_t kMaxBlockBytes = std::size_t{1} << 29;

/// Why a transport failed; its functions throw this. The group turns it into a CommError that names the operation, and
/// ends with that error on all ranks. Any other exception ends the group in the same way (MU061).
struct TransportFailure {
  enum class Kind {
    closed,   ///< the peer has died or left, or the connection to it broke (MU052)
    timeout,  ///< the deadline has passed (MU051)
    aborted,  ///< abort() was called, here or at the peer (MU053, or the id that the cause begins with)
    unusable  ///< this thread or process may not use it (the id that the detail begins with, or MU061)
  };
  Kind kind;
  int peer;            ///< the rank waited for, or the rank that aborted; -1 if none
  std::string detail;  ///< the cause for `aborted`, the system's message for `closed`
};

/// Carries bytes between the ranks of one group.
/// Order: from one rank to another, frames arrive in the order in which they were sent, and so do the blocks of each
/// channel. Frames, blocks of channel 0 and blocks of channel 1 are not ordered relative to each other.
/// Progress: while a thread waits in recv_frame() or Transfer::wait(), for any rank, all transfers of the transport
/// make progress; otherwise ranks that wait for each other in a ring would never end. Between calls no progress is
/// required: a rank that leaves an operation has waited for its blocks, and its frames arrive even if it makes no
/// further call.
/// Deadlines: a function that waits for another rank throws `timeout` soon after its deadline, and not before.
/// Death: once a peer's process has died, or its transport was destroyed, waits for that rank throw `closed` as soon as
/// this is known, but not before everything that it had sent was received. If it cannot be known, the wait ends at the
/// deadline.
/// Thread safety: one thread at a time, which may change; abort() from any thread, at any time. Several transports of a
/// process are used concurrently.
class Transport {
 public:
  /// A block on its way. Requires: it is destroyed before its transport.
  class Transfer {
   public:
    /// Ensures that the memory is no longer used, whether or not wait() was called. Does not wait for other ranks.
    virtual ~Transfer() = default;
    /// Waits until the block was received, or sent so far that it arrives even if this rank makes no further call.
    /// Throws: TransportFailure.
    virtual void wait(TimePoint deadline) = 0;
  };
  using Request = std::unique_ptr<Transfer>;

  /// Closes the connections, as close() does. A transport that was split from this one may outlive it.
  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Sends a frame without waiting for the receiver. At most two earlier frames of this rank are still to be received.
  /// Throws: TransportFailure.
  virtual void send_frame(int to, const Frame& frame, TimePoint deadline) = 0;
  /// Throws: TransportFailure.
  virtual void recv_frame(int from, Frame& frame, TimePoint deadline) = 0;

  /// Starts to send or receive a block: payload that does not fit into its frame. Sends match receives of equal size
  /// and channel in order; a receive may be posted before or after its send. Neither function waits.
  /// If ranks disagree, blocks may be sent that no rank receives, and receives posted without a send or with another
  /// size. Ranks learn of the disagreement from the frames, which must still arrive: only the wait() of such a transfer
  /// fails (`closed`), and nothing is written beyond a receive's memory. Requires: bytes > 0, at most kMaxBlockBytes;
  /// channel 0 or 1; the memory lives as long as the transfer. Throws: TransportFailure, but not `closed`: that is left
  /// to wait(), since a frame that gives the cause may have arrived.
  virtual Request send(int to, const void* data, std::size_t bytes, int channel) = 0;
  virtual Request recv(int from, void* data, std::size_t bytes, int channel) = 0;

  /// Ends a wait of another thread, and all later calls on this rank, with `aborted` and peer -1. Sends the cause, so
  /// that other ranks' waits for this rank end with `aborted` and this rank as peer; the cause may be cut after 1000
  /// bytes. Does not block. Only the first call has an effect. Thread safety: any thread.
  virtual void abort(const std::string& cause) noexcept = 0;
  /// Closes the connections, so that peers notice. After abort() it first waits up to a second for them to receive the
  /// cause. Called on the thread of the operations; afterwards only abort() may be called.
  virtual void close() noexcept = 0;

  /// Creates a transport among some of the ranks, on the members only: its rank r is rank ranks[r] of this transport.
  /// `name` is the name of the new group, unique among the parts of the job's first group.
  /// Collective: the members. Requires: ascending ranks. Throws: TransportFailure or any other exception; it becomes a
  /// CommError (MU058).
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

/// Creates the transport of the job's first group. `store` is the transport's part of the rendezvous store; it lives as
/// long as the group and its parts. An exception becomes a CommError (MU058).
/// Collective: every rank, after the rendezvous, within options.rendezvous_timeout.
using TransportFactory = std::unique_ptr<Transport> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, const GroupOptions& options);

/// The object that a program, or a shared library libmuster_NAME.so, defines for the backend "NAME" (letters, digits
/// and _):
///   extern "C" const muster::comm::TransportObject muster_transport_NAME{.make = make};
/// `backend = "NAME"`, --backend NAME and MUSTER_BACKEND=NAME select it, for connect() and in every program. A program
/// must export the symbol (CMake: ENABLE_EXPORTS), and is searched before shared libraries. These are looked up like
/// those of device_backend, need only Muster's headers, and are never unloaded. Names of Muster's backends are
/// reserved. If the job has a secret, the ranks then prove it to each other over the transport, as over gloo.
struct TransportObject {
  const char* built_with = MUSTER_BACKEND_OBJECT_BUILT_WITH;  ///< used only by programs with equal versions
  TransportFactory make = nullptr;
};

/// Forms a group of the ranks of this transport, without launcher, rendezvous or store. Uses only the options
/// `timeout`, `rendezvous_timeout` (for the handshakes) and `backend` (here only a name).
/// Collective: every rank of the transport. Throws: ConfigError (MU577) for a transport or options that cannot be used,
/// (MU327) for an invalid time-out; CommError (MU058) if ranks cannot be reached, (MU067) for a peer without the job's
/// secret (cluster::read_secret).
Communicator connect(std::unique_ptr<Transport> transport, const GroupOptions& options = {});

}  // namespace muster::comm
