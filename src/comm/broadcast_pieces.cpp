#include "comm/pairwise.h"
#include "comm/pieces.h"

namespace muster::comm {

/// The root sends every other rank a piece, which that one passes on to the others while more of it comes.
class Pairwise::PieceBroadcast {
 public:
  PieceBroadcast(Pairwise& group, const Call& call)
      : group_(group), transport_(*group.transport_), call_(call), tensor_(call.operation.out), rank_(group.rank()),
        root_(call.operation.root), others_(group.peers()), pieces_(aligned_pieces(tensor_, group.size() - 1)) {}

  void run() {
    if (rank_ != root_) post_arrivals();
    std::vector<SendRecv> pairs;
    for (int peer : others_) pairs.push_back({.peer = peer});
    group_.send_frames(call_, pairs);
    if (rank_ == root_) send_pieces();
    for (const auto& pair : pairs)
      group_.check_arrival(call_, pair, read_header(group_.recv_frame(call_, pair.peer, nullptr)));
    if (rank_ != root_) pass_on();
    for (auto& request : gathers_) request->wait(call_.deadline);
    for (auto& request : sends_) request->wait(call_.deadline);
  }

 private:
  /// The place of a rank's piece: the ranks after the root in turn.
  int place(int rank) const { return (rank - root_ - 1 + group_.size()) % group_.size(); }
  int64_t chunks(int rank) const { return pieces_.chunks(place(rank)); }

  Transport::Request send(int to, int owner, int64_t chunk) {
    const Range range = pieces_.of_chunk(place(owner), chunk);
    return transport_.send(to, at_element(tensor_, range.begin), bytes(range), 0);
  }

  Transport::Request recv(int from, int owner, int64_t chunk) {
    const Range range = pieces_.of_chunk(place(owner), chunk);
    return transport_.recv(from, at_element(tensor_, range.begin), bytes(range), 0);
  }

  std::size_t bytes(Range range) const { return static_cast<std::size_t>(range.size()) * tensor_.element_size(); }

  void post_arrivals() {
    for (int64_t chunk = 0; chunk < chunks(rank_); ++chunk) own_.push_back(recv(root_, rank_, chunk));
    for (int peer : others_)
      for (int64_t chunk = 0; peer != root_ && chunk < chunks(peer); ++chunk)
        gathers_.push_back(recv(peer, peer, chunk));
  }

  void send_pieces() {
    // Chunk by chunk, so that all can begin to pass on: the first piece is the largest.
    for (int64_t chunk = 0; chunk < pieces_.chunks(0); ++chunk)
      for (int peer : others_)
        if (chunk < chunks(peer)) sends_.push_back(send(peer, peer, chunk));
  }

  void pass_on() {
    for (std::size_t chunk = 0; chunk < own_.size(); ++chunk) {
      own_[chunk]->wait(call_.deadline);
      for (int peer : others_)
        if (peer != root_) sends_.push_back(send(peer, rank_, static_cast<int64_t>(chunk)));
    }
  }

  Pairwise& group_;
  Transport& transport_;
  const Call& call_;
  const at::Tensor& tensor_;
  const int rank_;
  const int root_;
  const std::vector<int> others_;
  const Pieces pieces_;
  Requests own_, gathers_, sends_;
};

void Pairwise::broadcast_pieces(const Call& call) { PieceBroadcast(*this, call).run(); }

}  // namespace muster::comm
