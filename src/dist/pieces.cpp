#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "dist/arithmetic.h"
#include "dist/pairwise.h"

namespace muster::dist {
namespace {

// The piece of a rank is reduced chunk by chunk: while one is summed, still in cache, the next is under way, and the sum
// of the last goes back. At most kWindow chunks per peer wait in scratch memory.
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

at::Tensor view(void* data, int64_t elements, const at::Tensor& like) {
  return at::from_blob(data, {elements}, at::TensorOptions().dtype(like.scalar_type()));
}

}  // namespace

void Pairwise::reduce_pieces(const Call& call, const at::Tensor& source, const at::Tensor& target, bool all_get_it) {
  const int64_t item = source.element_size();
  const int64_t elements = source.numel();
  const int64_t piece = all_get_it ? divide_up(divide_up(elements, size()), kAlign) * kAlign : elements / size();
  const Pieces pieces{elements, std::max<int64_t>(piece, 1), kChunkBytes / item};
  const auto others = peers();
  std::byte* memory = scratch(size() * kWindow * kChunkBytes);
  auto slot = [&](int peer, int64_t chunk) { return memory + (peer * kWindow + chunk % kWindow) * kChunkBytes; };
  const int64_t own_chunks = pieces.chunks(rank());

  Tickets sends, gathers;
  std::vector<std::deque<Transport::Ticket>> arrivals(size());
  auto post_arrival = [&](int peer, int64_t chunk) {
    auto bytes = static_cast<std::size_t>(pieces.of_chunk(rank(), chunk).size() * item);
    arrivals[peer].push_back(transport_->receive(peer, slot(peer, chunk), bytes, 0));
  };
  for (int64_t chunk = 0; chunk < std::min(kWindow, own_chunks); ++chunk)
    for (int peer : others) post_arrival(peer, chunk);
  std::vector<Leg> legs;
  for (int peer : others) legs.push_back({.peer = peer});
  send_frames(call, legs);
  for (int peer : others) {
    for (int64_t chunk = 0; chunk < pieces.chunks(peer); ++chunk) {
      Range range = pieces.of_chunk(peer, chunk);
      auto bytes = static_cast<std::size_t>(range.size() * item);
      sends.push_back(transport_->send(peer, at_element(source, range.begin), bytes, 0));
      // The sum comes back into memory that is sent from; it cannot come before the peer has all of it.
      if (all_get_it) gathers.push_back(transport_->receive(peer, at_element(target, range.begin), bytes, 1));
    }
  }
  for (int peer : others) receive_frame(call, peer, nullptr);

  std::vector<at::Tensor> terms(size());
  const int64_t target_begin = all_get_it ? 0 : pieces.of_rank(rank()).begin;
  for (int64_t chunk = 0; chunk < own_chunks; ++chunk) {
    Range range = pieces.of_chunk(rank(), chunk);
    for (int peer : others) {
      arrivals[peer].front()->wait(call.deadline);
      arrivals[peer].pop_front();
      terms[peer] = view(slot(peer, chunk), range.size(), source);
    }
    terms[rank()] = view(at_element(source, range.begin), range.size(), source);
    at::Tensor sum = view(at_element(target, range.begin - target_begin), range.size(), target);
    reduce_terms(sum, terms, rank(), call.operation.reduce);
    if (all_get_it)
      for (int peer : others) sends.push_back(transport_->send(peer, sum.const_data_ptr(), sum.nbytes(), 1));
    if (chunk + kWindow < own_chunks)
      for (int peer : others) post_arrival(peer, chunk + kWindow);
  }
  for (auto& ticket : gathers) ticket->wait(call.deadline);
  for (auto& ticket : sends) ticket->wait(call.deadline);
}

}  // namespace muster::dist
