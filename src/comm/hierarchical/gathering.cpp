#include "comm/hierarchical/gathering.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "comm/pieces.h"

namespace muster::comm {
namespace {

/// One all-gather while it runs. Each rank of a host receives some ranks' blocks from the other hosts, and then shares
/// these and its own block with its host, one after another, through staging.
class BlockGather {
 public:
  BlockGather(const HostContext& context, const at::Tensor& in, const at::Tensor& out)
      : context_(context), block_(in.nbytes()), in_(static_cast<const std::byte*>(in.const_data_ptr())),
        out_(static_cast<std::byte*>(out.mutable_data_ptr())),
        arrivals_(static_cast<std::size_t>(context.between.size())), arrived_(arrivals_.size()) {}

  void run() {
    if (block_of(context_.rank()) != in_) std::memmove(block_of(context_.rank()), in_, block_);
    const auto own = sources(context_.rank());
    for (std::size_t i = 1; i < own.size(); ++i) expect(own[i]);
    for (int step = 1; step < context_.hosts.count(); ++step)
      send_to((context_.host() + step) % context_.hosts.count());
    share();
    for (const int source : own) wait_for(source, block_);
    for (const auto& sent : sends_) sent->wait(context_.deadline);
  }

 private:
  std::byte* block_of(int rank) const { return out_ + block_ * static_cast<std::size_t>(rank); }

  /// The ranks whose blocks a rank shares on its host: itself first, then those that it receives, from the next host
  /// on.
  std::vector<int> sources(int rank) const {
    const Hosts& hosts = context_.hosts;
    std::vector<int> all{rank};
    for (int step = 1; step < hosts.count(); ++step) {
      const int host = (hosts.of(rank) + step) % hosts.count();
      for (int source = hosts.first(host); source < hosts.first(host) + hosts.size(host); ++source)
        if (hosts.owner(hosts.of(rank), hosts.local_rank(source)) == rank) all.push_back(source);
    }
    return all;
  }

  void for_each_message(const std::function<void(std::size_t begin, std::size_t bytes)>& f) const {
    for (std::size_t begin = 0; begin < block_; begin += kChunkBytes)
      f(begin, std::min<std::size_t>(kChunkBytes, block_ - begin));
  }
  void expect(int source) {
    for_each_message([&](std::size_t begin, std::size_t bytes) {
      arrivals_[source].push_back(context_.between.recv(source, block_of(source) + begin, bytes, 0));
    });
  }
  void send_to(int host) {
    const int to = context_.hosts.owner(host, context_.hosts.local_rank(context_.rank()));
    for_each_message([&](std::size_t begin, std::size_t bytes) {
      sends_.push_back(context_.between.send(to, block_of(context_.rank()) + begin, bytes, 0));
    });
  }
  /// Waits until the first `bytes` bytes of that rank's block have arrived.
  void wait_for(int source, std::size_t bytes) {
    auto& next = arrived_[source];
    for (; next < arrivals_[source].size() && next * kChunkBytes < bytes; ++next)
      arrivals_[source][next]->wait(context_.deadline);
  }

  /// Calls f for each range that a rank's staging holds in a round.
  void for_each_place(int rank, std::size_t round,
                      const std::function<void(int source, std::size_t begin, std::size_t bytes)>& f) const {
    const auto blocks = sources(rank);
    std::size_t at = round * HostStaging::kBytes;
    const std::size_t end = std::min(at + HostStaging::kBytes, block_ * blocks.size());
    while (at < end) {
      const std::size_t begin = at % block_, bytes = std::min(block_ - begin, end - at);
      f(blocks[at / block_], begin, bytes);
      at += bytes;
    }
  }

  void share() {
    const int first = context_.within.first(), end = first + context_.within.size();
    std::size_t most = 0;
    for (int rank = first; rank < end; ++rank) most = std::max(most, sources(rank).size());
    for (std::size_t round = 0; round * HostStaging::kBytes < most * block_; ++round)
      context_.within.round(
          context_.deadline, [&](std::byte* to) { fill(round, to); },
          [&] {
            for (int rank = first; rank < end; ++rank)
              if (rank != context_.rank()) copy(rank, round);
          });
  }
  void fill(std::size_t round, std::byte* to) {
    for_each_place(context_.rank(), round, [&](int source, std::size_t begin, std::size_t bytes) {
      wait_for(source, begin + bytes);
      std::memcpy(to, block_of(source) + begin, bytes);
      to += bytes;
    });
  }
  void copy(int rank, std::size_t round) {
    const std::byte* from = context_.within.of(rank, context_.deadline);
    for_each_place(rank, round, [&](int source, std::size_t begin, std::size_t bytes) {
      std::memcpy(block_of(source) + begin, from, bytes);
      from += bytes;
    });
  }

  const HostContext& context_;
  const std::size_t block_;  ///< size of each rank's block in bytes
  const std::byte* const in_;
  std::byte* const out_;
  std::vector<std::vector<Transport::Request>> arrivals_;  ///< receives by source rank
  std::vector<std::size_t> arrived_;                       ///< number of finished receives by source rank
  std::vector<Transport::Request> sends_;
};

}  // namespace

void all_gather_by_hosts(const HostContext& context, const at::Tensor& in, const at::Tensor& out) {
  BlockGather(context, in, out).run();
}

}  // namespace muster::comm
