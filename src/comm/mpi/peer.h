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

/// What a group stores about another rank. Thread safety: the group's.
struct Peer {
  explicit Peer(const std::shared_ptr<DuplicatedComm>& comm) : incoming(comm), abort_message(comm) {}
  std::vector<std::unique_ptr<Message>> sent;                        ///< frames sent that the peer has not taken yet
  Message incoming;                                                  ///< receive of the next frame from the peer
  std::deque<Frame> arrived;                                         ///< frames that arrived before `incoming`
  Message abort_message;                                             ///< frame with the cause, sent to the peer
  std::array<std::array<std::unique_ptr<BlockQueue>, 2>, 2> queues;  ///< queues of blocks by channel and direction
  bool has_ended = false;                                            ///< whether the peer sent the cause of its own end
  bool has_closed = false;                                           ///< whether it closed without a cause
  std::optional<TimePoint> left;                                     ///< when this rank noticed that the peer has left
};

/// The size of a frame without its trailing zeros: MPI sends small messages eagerly, but 4 KiB only after a handshake.
/// Never 0, because an empty message means that the transport was closed.
inline std::size_t used_bytes(const Frame& frame) {
  const auto last =
      std::find_if(frame.bytes.rbegin(), frame.bytes.rend(), [](std::byte b) { return b != std::byte{}; });
  return std::max<std::size_t>(static_cast<std::size_t>(frame.bytes.rend() - last), 1);
}

}  // namespace muster::comm::mpi
