#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/comm/detail/time_point.h"
#include "muster/comm/options.h"
#include "muster/comm/rendezvous.h"

/// For programs that carry messages between ranks themselves, over a network or a library of their own. A transport
/// moves bytes; all that a communicator does runs over it as over gloo, with the same bits: headers by which ranks that
/// disagree are found, dtypes, sums in rank order, time-outs, groups, and the first cause of a failure.
namespace muster::comm {

/// Every message starts with a frame of this size, so that it can be received before its size is known. A transport
/// does not look into frames; zeros at the end of one need not travel.
inline constexpr std::size_t kFrameBytes = 4096;

struct Frame {
  alignas(64) std::array<std::byte, kFrameBytes> bytes;
};

/// The size of the largest block.
inline constexpr std::size_t kMaxBlockBytes = std::size_t{1} << 29;

/// Why a transport failed: what its functions throw. The group makes it a CommError that names the operation, and ends
/// with it on all ranks. It does the same with any other exception (MU061).
struct TransportFailure {
  enum class Kind {
    closed,   ///< the peer has died or left, or the connection to it broke (MU052)
    timeout,  ///< the deadline has passed (MU051)
    aborted,  ///< by abort(), here or at the peer (MU053, or the id that the cause begins with)
    unusable  ///< this thread or process may not use it (the id that the detail begins with, or MU061)
  };
  Kind kind;
  int peer;            ///< the rank waited for, or the one that aborted; -1 if none
  std::string detail;  ///< the cause for `aborted`, the system's message for `closed`
};

/// Bytes between the ranks of one group.
/// Order: from one rank to another, frames arrive in the order in which they were sent, and so do the blocks of each
/// channel. Between frames, the blocks of channel 0 and those of channel 1 there is no order.
/// Progress: while a thread waits in recv_frame() or Transfer::wait(), for whichever rank, all transfers of the
/// transport go on; ranks that wait for each other in a ring would never end otherwise. Between calls nothing has to
/// move: a rank that leaves an operation has waited for its blocks, and its frames arrive though it calls nothing more.
/// Deadlines: what waits for another rank throws `timeout` soon after its deadline, and not before.
/// Death: once a peer's process has died, or its transport has gone, waits for that rank throw `closed`, as soon as
/// that is known, but not before all that it had sent was received. What nobody can know ends at the deadline.
/// Thread safety: one thread at a time, not always the same one; abort() from any, at any time. Several transports of a
/// process are used at once.
class Transport {
 public:
  /// A block on its way. Requires: it is destroyed before its transport.
  class Transfer {
   public:
    /// Ensures that the memory is no longer used, whether or not it was waited for, and waits for no other rank.
    virtual ~Transfer() = default;
    /// Until the block was received, or sent so far that it arrives though this rank calls nothing more.
    /// Throws: TransportFailure.
    virtual void wait(TimePoint deadline) = 0;
  };
  using Request = std::unique_ptr<Transfer>;

  /// As close(). A subgroup's transport that was split from it may outlive it.
  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Sends a frame, and does not wait for the receiver: at most two earlier frames of this rank are not received yet.
  /// Throws: TransportFailure.
  virtual void send_frame(int to, const Frame& frame, TimePoint deadline) = 0;
  /// Throws: TransportFailure.
  virtual void recv_frame(int from, Frame& frame, TimePoint deadline) = 0;

  /// Starts to send or receive a block: payload that does not fit into its frame. A send matches the receive of the
  /// same size and channel, in order, which may be posted before or after it. Neither waits.
  /// Where ranks disagree, blocks are sent that nobody receives, and receives posted for nothing or with another size;
  /// ranks learn of it by the frames, which still have to arrive: nothing fails but such a transfer's wait()
  /// (`closed`), and nothing is written beyond a receive's memory. Requires: bytes > 0, at most kMaxBlockBytes; channel
  /// 0 or 1; the memory lives as long as the transfer. Throws: TransportFailure, but not `closed`: that is for wait(),
  /// since a frame may have come that gives the cause.
  virtual Request send(int to, const void* data, std::size_t bytes, int channel) = 0;
  virtual Request recv(int from, void* data, std::size_t bytes, int channel) = 0;

  /// Ends the wait that another thread may be in, and all later calls here, by `aborted` with peer -1. Sends the cause,
  /// so that the others' waits for this rank end by `aborted` with this rank; it may be cut after 1000 bytes. Does not
  /// block. Only the first call counts. Thread safety: any thread.
  virtual void abort(const std::string& cause) noexcept = 0;
  /// Closes the connections, so that peers notice; after abort() it first gives them up to a second to take the cause.
  /// Called by the thread of the operations; afterwards only abort() may be called.
  virtual void close() noexcept = 0;

  /// A transport among some of the ranks, for members only: its rank r is this one's rank ranks[r]. `name` is that of
  /// the new group, which no other part of the job's first group has.
  /// Collective: the members. Requires: ascending ranks. Throws: TransportFailure, or any other exception; it becomes a
  /// CommError (MU058).
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

/// Makes the transport of the job's first group. `store` is the part of the rendezvous store that is the transport's;
/// it lives as long as the group and its parts. What it throws becomes a CommError (MU058).
/// Collective: every rank, after the rendezvous; it has options.rendezvous_timeout for this.
using TransportFactory = std::unique_ptr<Transport> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, const GroupOptions& options);

/// What a program, or a shared object libmuster_NAME.so, defines for the backend "NAME" (letters, digits and _):
///   extern "C" const muster::comm::TransportObject muster_transport_NAME{.make = make};
/// `backend = "NAME"`, --backend NAME and MUSTER_BACKEND=NAME take it, under connect() and in every program. A program
/// has to export the symbol (CMake: ENABLE_EXPORTS), and is searched before shared objects. These are found as those of
/// device_backend, need only Muster's headers, and are never unloaded. Names of Muster's own backends cannot be taken.
/// Afterwards ranks prove the job's secret to each other over the transport, if there is one, as over gloo.
struct TransportObject {
  const char* built_with = MUSTER_BACKEND_OBJECT_BUILT_WITH;  ///< used only by programs with the same versions
  TransportFactory make = nullptr;
};

/// The ranks of this transport as a group, without launcher, rendezvous and store. Of the options only `timeout`,
/// `rendezvous_timeout` (for the handshakes) and `backend` (here only a name) are used.
/// Collective: every rank of the transport. Throws: ConfigError (MU577) for a transport or options that cannot be used,
/// (MU327) for an invalid time-out; CommError (MU058) if ranks cannot be reached, (MU067) for a peer without the job's
/// secret (cluster::read_secret).
Communicator connect(std::unique_ptr<Transport> transport, const GroupOptions& options = {});

}  // namespace muster::comm
