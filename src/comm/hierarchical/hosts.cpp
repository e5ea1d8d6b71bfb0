#include "comm/hierarchical/hosts.h"

#include "muster/base/format.h"

namespace muster::comm {

Hosts::Hosts(std::vector<int> host_of_rank) : host_of_rank_(std::move(host_of_rank)) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
    const auto [entry, is_new] = numbers.emplace(host_of_rank_[rank], count());
    if (is_new) firsts_.push_back(static_cast<int>(rank)), sizes_.push_back(0);
    host_of_rank_[rank] = entry->second;
    ++sizes_[static_cast<std::size_t>(entry->second)];
  }
}

std::string Hosts::obstacle() const {
  if (count() == 1) return "all ranks are on one host";
  if (largest() == 1) return "no two ranks are on one host";
  for (std::size_t rank = 1; rank < host_of_rank_.size(); ++rank)
    if (host_of_rank_[rank] < host_of_rank_[rank - 1])
      return formatted("ranks {} and {} are on one host, but rank {} between them is on another",
                       first(host_of_rank_[rank]), rank, rank - 1);
  return "";
}

Hosts Hosts::of_ranks(const std::vector<int>& ranks) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(of(rank));
  return Hosts(std::move(hosts));
}

void HostStaging::wait(int rank, TimePoint deadline) {
  in_ranks_of_group([&] { areas_->wait_for_count(rank - first_, &Control::filled, rounds_, deadline); });
}

void HostStaging::round(TimePoint deadline, const std::function<void(std::byte*)>& fill,
                        const std::function<void()>& use) {
  if (size() == 1) return use();
  areas_->ensure_staging();
  // A rank that has made the last round has finished the round before it, which used this buffer.
  for (int peer = 0; peer < size(); ++peer)
    if (peer != areas_->rank()) wait(first_ + peer, deadline);
  fill(areas_->staging(areas_->rank(), rounds_));
  arrive();
  use();
}

std::shared_ptr<SharedBuffer> HostStaging::allocate_buffer(std::size_t bytes, uint64_t number, int ranks,
                                                           TimePoint deadline) {
  auto buffer = in_ranks_of_group([&] { return areas_->allocate_buffer(bytes, PeerAccess::read, number, deadline); });
  if (!buffer) return nullptr;
  auto whole = std::make_shared<SharedBuffer>(*buffer);
  whole->parts.assign(static_cast<std::size_t>(ranks), nullptr);
  std::copy(buffer->parts.begin(), buffer->parts.end(), whole->parts.begin() + first_);
  whole->keeps = std::move(buffer);
  return whole;
}

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
  const int64_t piece = tensor.numel() / hosts.ranks();
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
