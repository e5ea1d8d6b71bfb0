#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "comm/mpi/block_queue.h"
#include "comm/mpi/duplicated_comm.h"
#include "comm/mpi/message.h"
#include "muster/comm/transport.h"

namespace muster::comm::mpi {

/// What a group keeps of another rank. Thread safety: the group's.
struct Peer {
  explicit Peer(const std::shared_ptr<DuplicatedComm>& comm) : incoming(comm), abort_message(comm) {}
  std::vector<std::unique_ptr<Message>> sent;                        ///< frames, until the peer has taken them
  Message incoming;                                                  ///< the next frame from the peer
  std::deque<Frame> arrived;                                         ///< frames from it before that one
  Message abort_message;                                             ///< the frame with the cause
  std::array<std::array<std::unique_ptr<BlockQueue>, 2>, 2> queues;  ///< by channel and direction
  bool has_ended = false;                                            ///< it gave the cause of its own end
  bool has_closed = false;                                           ///< its transport was closed without one
  std::optional<TimePoint> left;                                     ///< when it was noticed that it has left
};

/// The size of a frame without the zeros at its end: MPI sends small messages eagerly, but 4 KiB only after a
/// handshake. Never 0: an empty message says that the transport was closed.
inline std::size_t used_bytes(const Frame& frame) {
  const auto last =
      std::find_if(frame.bytes.rbegin(), frame.bytes.rend(), [](std::byte b) { return b != std::byte{}; });
  return std::max<std::size_t>(static_cast<std::size_t>(frame.bytes.rend() - last), 1);
}

}  // namespace muster::comm::mpi
