#include "comm/hierarchical/host_chunks.h"

#include <algorithm>

namespace muster::comm {
namespace {

int64_t staged_elements(const at::Tensor& tensor) {
  return static_cast<int64_t>(HostStaging::kBytes / tensor.element_size());
}

}  // namespace

void HostContext::end_reading() const {
  within.arrive();
  for (int peer = within.first(); peer < within.first() + within.size(); ++peer)
    if (peer != rank()) within.wait(peer, deadline);
}

std::vector<Chunk> chunks_by_local_rank(const at::Tensor& tensor, const Hosts& hosts, int receiver) {
  const int owners = hosts.largest();
  const int64_t elements = tensor.numel(), at_once = staged_elements(tensor);
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < elements; begin += at_once) {
    Chunk& chunk = chunks.emplace_back();
    const int64_t size = std::min(at_once, elements - begin);
    for (int local_rank = 0; local_rank < owners; ++local_rank)
      if (const Range part = aligned_piece_of(local_rank, size, owners); part.size() > 0)
        chunk.push_back({{begin + part.begin, begin + part.end}, local_rank, receiver});
  }
  return chunks;
}

std::vector<Chunk> chunks_of_pieces(const at::Tensor& tensor, const Hosts& hosts) {
  int ranks = 0;
  for (int host = 0; host < hosts.count(); ++host) ranks += hosts.size(host);
  const int64_t piece = tensor.numel() / ranks;
  const int64_t at_once = std::max<int64_t>(staged_elements(tensor) / hosts.largest() / kPieceAlign * kPieceAlign, 1);
  std::vector<Chunk> chunks;
  for (int64_t begin = 0; begin < piece; begin += at_once)
    for (int host = 0; host < hosts.count(); ++host) {
      Chunk& chunk = chunks.emplace_back();
      for (int rank = hosts.first(host); rank < hosts.first(host) + hosts.size(host); ++rank)
        chunk.push_back(
            {{piece * rank + begin, piece * rank + std::min(begin + at_once, piece)}, hosts.local_rank(rank), rank});
    }
  return chunks;
}

}  // namespace muster::comm
