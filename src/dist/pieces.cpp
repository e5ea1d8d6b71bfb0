#include <algorithm>
#include <deque>

#include "dist/arithmetic.h"
#include "dist/pairwise.h"

namespace muster::dist {
namespace {

// The piece of a rank is reduced chunk by chunk: while one is reduced, still in cache, the next is under way, and the
// result of the last goes back. At most kWindow chunks per peer wait in scratch memory.
constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kWindow = 4;
constexpr int64_t kAlign = 64;  // elements

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// How the elements are divided into pieces of ranks and chunks of pieces.
struct Pieces {
  int64_t elements;
  int64_t piece;
  int64_t chunk;

  Range of_rank(int64_t rank) const { return {std::min(rank * piece, elements), std::min((rank + 1) * piece, elements)}; }
  int64_t chunks(int64_t rank) const { return divide_up(of_rank(rank).size(), chunk); }
  Range of_chunk(int64_t rank, int64_t index) const {
    Range piece_range = of_rank(rank);
    int64_t begin = piece_range.begin + index * chunk;
    return {begin, std::min(begin + chunk, piece_range.end)};
  }
};

std::byte* at_element(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())) + element * tensor.element_size();
}

}  // namespace

/// One reduction of pieces on its way.
class Pairwise::PieceReduction {
 public:
  PieceReduction(Pairwise& group, const Call& call, const at::Tensor& source, const at::Tensor& target, bool all_get_it)
      : group_(group), transport_(*group.transport_), call_(call), source_(source), target_(target), all_get_it_(all_get_it),
        rank_(group.rank()), others_(group.peers()), pieces_(divide()),
        memory_(group.scratch(group.size() * kWindow * kChunkBytes)), arrivals_(group.size()), terms_(group.size()) {}

  void run() {
    const int64_t own_chunks = pieces_.chunks(rank_);
    for (int64_t chunk = 0; chunk < std::min(kWindow, own_chunks); ++chunk) post_arrivals(chunk);
    std::vector<Leg> legs;
    for (int peer : others_) legs.push_back({.peer = peer});
    group_.send_frames(call_, legs);
    for (int peer : others_) send_piece(peer);
    for (const auto& leg : legs) group_.check_arrival(call_, leg, read_header(group_.receive_frame(call_, leg.peer, nullptr)));
    for (int64_t chunk = 0; chunk < own_chunks; ++chunk) {
      reduce_chunk(chunk);
      if (chunk + kWindow < own_chunks) post_arrivals(chunk + kWindow);
    }
    for (auto& ticket : gathers_) ticket->wait(call_.deadline);
    for (auto& ticket : sends_) ticket->wait(call_.deadline);
  }

 private:
  Pieces divide() const {
    const int64_t elements = source_.numel(), size = group_.size();
    const int64_t piece = all_get_it_ ? divide_up(divide_up(elements, size), kAlign) * kAlign : elements / size;
    return {elements, std::max<int64_t>(piece, 1), kChunkBytes / static_cast<int64_t>(source_.element_size())};
  }

  std::size_t bytes(Range range) const { return static_cast<std::size_t>(range.size()) * source_.element_size(); }
  std::byte* slot(int peer, int64_t chunk) const { return memory_ + (peer * kWindow + chunk % kWindow) * kChunkBytes; }

  void post_arrivals(int64_t chunk) {
    for (int peer : others_)
      arrivals_[peer].push_back(transport_.receive(peer, slot(peer, chunk), bytes(pieces_.of_chunk(rank_, chunk)), 0));
  }

  void send_piece(int peer) {
    for (int64_t chunk = 0; chunk < pieces_.chunks(peer); ++chunk) {
      Range range = pieces_.of_chunk(peer, chunk);
      sends_.push_back(transport_.send(peer, at_element(source_, range.begin), bytes(range), 0));
      // The result comes back into memory that is sent from, but not before the peer has all of it.
      if (all_get_it_) gathers_.push_back(transport_.receive(peer, at_element(target_, range.begin), bytes(range), 1));
    }
  }

  void reduce_chunk(int64_t chunk) {
    const Range range = pieces_.of_chunk(rank_, chunk);
    for (int peer : others_) {
      arrivals_[peer].front()->wait(call_.deadline);
      arrivals_[peer].pop_front();
      terms_[peer] = elements_at(slot(peer, chunk), range.size(), source_);
    }
    terms_[rank_] = elements_at(at_element(source_, range.begin), range.size(), source_);
    const int64_t target_begin = all_get_it_ ? 0 : pieces_.of_rank(rank_).begin;
    at::Tensor result = elements_at(at_element(target_, range.begin - target_begin), range.size(), target_);
    reduce_terms(result, terms_, rank_, call_.operation.reduce);
    if (!all_get_it_) return;
    for (int peer : others_) sends_.push_back(transport_.send(peer, result.const_data_ptr(), result.nbytes(), 1));
  }

  Pairwise& group_;
  Transport& transport_;
  const Call& call_;
  const at::Tensor& source_;
  const at::Tensor& target_;
  const bool all_get_it_;
  const int rank_;
  const std::vector<int> others_;
  const Pieces pieces_;
  std::byte* const memory_;
  Tickets sends_, gathers_;
  std::vector<std::deque<Transport::Ticket>> arrivals_;
  std::vector<at::Tensor> terms_;
};

void Pairwise::reduce_pieces(const Call& call, const at::Tensor& source, const at::Tensor& target, bool all_get_it) {
  PieceReduction(*this, call, source, target, all_get_it).run();
}

}  // namespace muster::dist
