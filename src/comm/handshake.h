#pragma once

#include <exception>

#include "base/text.h"
#include "cluster/secret.h"
#include "error_text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Runs `make`, which connects a group by `what`. If it cannot reach a rank, throws CommError (MU058) with a text that
/// ends with `hint`.
template <class F>
auto connect_or_throw(const std::string& what, const std::string& name, int rank, F make,
                      const char* hint = "Look for the first failure in the output of the other ranks.") {
  std::string reason;
  try {
    return make();
  } catch (const TransportFailure& failure) {
    const bool late = failure.kind == TransportFailure::Kind::timeout;
    reason = late ? formatted("rank {} did not answer in time", failure.peer) : failure.detail;
    if (failure.kind == TransportFailure::Kind::unusable) {
      const auto [id, text] = split_message(reason, "MU058");
      throw CommError(id, formatted("rank {} cannot connect group {} by {}: {}", rank, name, what, text));
    }
  } catch (const Error&) {
    throw;  // a peer or a value was refused
  } catch (const std::exception& failure) {
    reason = failure.what();
  } catch (...) {
    reason = kNoStdException;
  }
  throw CommError("MU058", formatted("rank {} could not connect group {} by {}: {}. {}", rank, name, what,
                                     short_error_text(reason), hint));
}

/// Sends a frame to each peer and receives one from each.
template <class Make, class Take>
void exchange_frames(Transport& transport, TimePoint deadline, Make make, Take take) {
  Frame frame{};
  for (int peer = 0; peer < transport.size(); ++peer)
    if (peer != transport.rank()) transport.send_frame(peer, make(peer), deadline);
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    transport.recv_frame(peer, frame, deadline);
    take(peer, frame);
  }
}

/// The handshake between two ranks of a group. With a secret, each rank sends the other an unpredictable number, and
/// accepts it if the response is signed with the job's secret: a process that merely reaches the port is not accepted
/// as a rank. Without a secret, each side sends an empty frame.
/// Why: docs/decisions/0043-who-may-join.md.
class Handshake {
 public:
  Handshake(cluster::Secret secret, std::string group, int rank, int size);

  /// The challenge of this rank, which all peers get.
  Frame challenge() const;
  /// Throws: CommError (MU067) if one of the two ranks has a secret and the other has none.
  void take_challenge(int peer, const Frame& frame);
  /// Whether responses follow the challenges.
  bool has_secret() const noexcept { return secret_.is_given(); }
  /// Requires: take_challenge() for that peer.
  Frame response(int peer) const;
  /// Throws: CommError (MU067) if the frame is not that rank's response.
  void check_response(int peer, const Frame& frame) const;

 private:
  std::string signed_from(int from, int to) const;

  cluster::Secret secret_;
  std::string group_;
  int rank_;
  std::string challenge_;            ///< the challenge of this rank
  std::vector<std::string> theirs_;  ///< the challenges of the peers, by rank
};

/// Makes the handshakes with all peers, as the first frames of a transport. Collective. Throws: what Handshake throws;
/// TransportFailure.
void shake_hands(Transport& transport, const cluster::Secret& secret, const std::string& group,
                 std::chrono::milliseconds timeout);

}  // namespace muster::comm
