#include "comm/hierarchical/chain_broadcast.h"

#include <cstring>

namespace muster::comm {
namespace {

// Of results that are received on another channel than what is summed.
constexpr int kChannel = 1;

}  // namespace

ChainBroadcast::ChainBroadcast(const HostContext& ranks, const at::Tensor& tensor, int from_host)
    : ranks_(ranks), tensor_(tensor), from_(from_host) {}

void ChainBroadcast::expect(const Part& part) {
  const int nearer = ranks_.host() + (ranks_.host() < from_ ? 1 : -1);
  arrivals_.push_back(ranks_.between.recv(ranks_.hosts.owner(nearer, part.column), at(part), bytes(part), kChannel));
}

void ChainBroadcast::send_to(int host, const Part& part) {
  if (host < 0 || host >= ranks_.hosts.count()) return;
  sends_.push_back(ranks_.between.send(ranks_.hosts.owner(host, part.column), at(part), bytes(part), kChannel));
}

void ChainBroadcast::pass_on(const Part& part) {
  if (ranks_.host() <= from_) send_to(ranks_.host() - 1, part);
  if (ranks_.host() >= from_) send_to(ranks_.host() + 1, part);
}

void ChainBroadcast::wait_arrived(const Chunk& chunk) {
  for (const Part& part : chunk) {
    if (is_source() || !ranks_.owns(part.column)) continue;
    arrivals_.front()->wait(ranks_.deadline);
    arrivals_.pop_front();
    pass_on(part);
  }
}

void ChainBroadcast::copy_mapped(const Chunk& chunk) {
  ranks_.within.step();
  for (const Part& part : chunk) {
    const int owner = ranks_.hosts.owner(ranks_.host(), part.column);
    if (owner == ranks_.rank()) continue;
    ranks_.within.wait(owner, ranks_.deadline);
    std::memcpy(at(part), ranks_.mapped[owner] + part.range.begin * tensor_.element_size(), bytes(part));
  }
}

void ChainBroadcast::share(const Chunk& chunk) {
  wait_arrived(chunk);
  if (!ranks_.mapped.empty()) return copy_mapped(chunk);
  const auto fill = [&](std::byte* to) {
    for (const Part& part : chunk) {
      if (ranks_.owns(part.column)) std::memcpy(to, at(part), bytes(part));
      to += bytes(part);
    }
  };
  const auto use = [&] {
    std::size_t begin = 0;
    for (const Part& part : chunk) {
      const int owner = ranks_.hosts.owner(ranks_.host(), part.column);
      if (owner != ranks_.rank()) std::memcpy(at(part), ranks_.within.of(owner, ranks_.deadline) + begin, bytes(part));
      begin += bytes(part);
    }
  };
  ranks_.within.round(ranks_.deadline, fill, use);
}

void ChainBroadcast::finish() {
  for (const auto& sent : sends_) sent->wait(ranks_.deadline);
}

void broadcast_by_hosts(const HostContext& ranks, const at::Tensor& tensor, int root) {
  const auto chunks = chunks_of_columns(tensor, ranks.hosts, -1);
  ChainBroadcast spreading(ranks, tensor, ranks.hosts.of(root));
  const bool is_root = ranks.rank() == root;
  for (const Chunk& chunk : chunks)
    for (const Part& part : chunk)
      if (!spreading.is_source() && ranks.owns(part.column)) spreading.expect(part);
  for (const Chunk& chunk : chunks) {
    if (!spreading.is_source()) {
      spreading.share(chunk);
      continue;
    }
    std::byte* begin = spreading.at(chunk.front());
    const auto bytes = static_cast<std::size_t>(spreading.at(chunk.back()) - begin) + spreading.bytes(chunk.back());
    const auto fill = [&](std::byte* to) {
      if (is_root) std::memcpy(to, begin, bytes);
    };
    const auto use = [&] {
      if (!is_root) std::memcpy(begin, ranks.within.of(root, ranks.deadline), bytes);
    };
    ranks.within.round(ranks.deadline, fill, use);
    for (const Part& part : chunk)
      if (ranks.owns(part.column)) spreading.pass_on(part);
  }
  spreading.finish();
}

}  // namespace muster::comm
