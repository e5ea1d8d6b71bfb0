#include <algorithm>
#include <deque>

#include "comm/arithmetic.h"
#include "comm/pairwise.h"
#include "comm/pieces.h"

namespace muster::comm {
namespace {

// The piece of a rank is reduced chunk by chunk: while one is reduced, still in cache, the next is under way, and the
// result of the last is sent on. At most kWindow chunks per peer wait in scratch memory.
constexpr int64_t kWindow = 4;

}  // namespace

/// One reduction of pieces on its way.
class Pairwise::PieceReduction {
 public:
  PieceReduction(Pairwise& group, const Call& call, const at::Tensor& source, const at::Tensor& target,
                 Receivers receivers)
      : group_(group), transport_(*group.transport_), call_(call), source_(source), target_(target),
        receivers_(receivers), rank_(group.rank()), others_(group.peers()), pieces_(divide()),
        window_(std::min(kWindow, pieces_.chunks(rank_))),
        peer_bytes_(bytes({0, std::min(window_ * pieces_.chunk, pieces_.of_rank(rank_).size())})),
        memory_(group.scratch(group.size() * peer_bytes_)), arrivals_(group.size()), terms_(group.size()) {}

  void run() {
    const int64_t own_chunks = pieces_.chunks(rank_);
    for (int64_t chunk = 0; chunk < window_; ++chunk) post_arrivals(chunk);
    std::vector<SendRecv> pairs;
    for (int peer : others_) pairs.push_back({.peer = peer});
    group_.send_frames(call_, pairs);
    for (int peer : others_) send_piece(peer);
    for (const auto& pair : pairs)
      group_.check_arrival(call_, pair, read_header(group_.recv_frame(call_, pair.peer, nullptr)));
    for (int64_t chunk = 0; chunk < own_chunks; ++chunk) {
      reduce_chunk(chunk);
      if (chunk + window_ < own_chunks) post_arrivals(chunk + window_);
    }
    for (auto& request : gathers_) request->wait(call_.deadline);
    for (auto& request : results_) request->wait(call_.deadline);
    for (auto& request : sends_) request->wait(call_.deadline);
  }

 private:
  Pieces divide() const {
    Pieces pieces = aligned_pieces(source_, group_.size());
    if (receivers_ == Receivers::owner) pieces.piece = std::max<int64_t>(source_.numel() / group_.size(), 1);
    return pieces;
  }

  /// Whether `rank` gets the pieces of others.
  bool gathers(int rank) const {
    return receivers_ == Receivers::all || (receivers_ == Receivers::root && rank == call_.operation.root);
  }

  std::size_t bytes(Range range) const { return static_cast<std::size_t>(range.size()) * source_.element_size(); }
  std::byte* slot(int peer, int64_t chunk) const {
    return memory_ + peer * peer_bytes_ + bytes({0, chunk % window_ * pieces_.chunk});
  }

  void post_arrivals(int64_t chunk) {
    for (int peer : others_)
      arrivals_[peer].push_back(transport_.recv(peer, slot(peer, chunk), bytes(pieces_.of_chunk(rank_, chunk)), 0));
  }

  void send_piece(int peer) {
    for (int64_t chunk = 0; chunk < pieces_.chunks(peer); ++chunk) {
      Range range = pieces_.of_chunk(peer, chunk);
      sends_.push_back(transport_.send(peer, at_element(source_, range.begin), bytes(range), 0));
      // The result comes back into memory that is sent from, but not before the peer has all of it.
      if (gathers(rank_)) gathers_.push_back(transport_.recv(peer, at_element(target_, range.begin), bytes(range), 1));
    }
  }

  /// Where the sum of a chunk goes. Where only the root's tensor may change, that is this rank's own place in scratch
  /// memory.
  at::Tensor result_of(int64_t chunk, Range range) {
    if (receivers_ == Receivers::root && !gathers(rank_)) {
      if (static_cast<int64_t>(results_.size()) == window_) {
        results_.front()->wait(call_.deadline);
        results_.pop_front();
      }
      return elements_at(slot(rank_, chunk), range.size(), target_);
    }
    const int64_t begin = receivers_ == Receivers::owner ? pieces_.of_rank(rank_).begin : 0;
    return elements_at(at_element(target_, range.begin - begin), range.size(), target_);
  }

  void reduce_chunk(int64_t chunk) {
    const Range range = pieces_.of_chunk(rank_, chunk);
    for (int peer : others_) {
      arrivals_[peer].front()->wait(call_.deadline);
      arrivals_[peer].pop_front();
      terms_[peer] = elements_at(slot(peer, chunk), range.size(), source_);
    }
    terms_[rank_] = elements_at(at_element(source_, range.begin), range.size(), source_);
    const at::Tensor result = result_of(chunk, range);
    reduce_terms(result, terms_, rank_, call_.operation.reduce);
    auto& sent = receivers_ == Receivers::root ? results_ : sends_;
    for (int peer : others_)
      if (gathers(peer)) sent.push_back(transport_.send(peer, result.const_data_ptr(), result.nbytes(), 1));
  }

  Pairwise& group_;
  Transport& transport_;
  const Call& call_;
  const at::Tensor& source_;
  const at::Tensor& target_;
  const Receivers receivers_;
  const int rank_;
  const std::vector<int> others_;
  const Pieces pieces_;
  const int64_t window_;
  const std::size_t peer_bytes_;  // of scratch memory
  std::byte* const memory_;
  Requests gathers_;
  std::deque<Transport::Request> sends_, results_;
  std::vector<std::deque<Transport::Request>> arrivals_;
  std::vector<at::Tensor> terms_;
};

void Pairwise::reduce_pieces(const Call& call, const at::Tensor& source, const at::Tensor& target,
                             Receivers receivers) {
  PieceReduction(*this, call, source, target, receivers).run();
}

}  // namespace muster::comm
