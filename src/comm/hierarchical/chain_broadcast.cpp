#include "comm/hierarchical/chain_broadcast.h"

#include <cstring>

namespace muster::comm {
namespace {

// Results arrive on a different channel than sums.
constexpr int kChannel = 1;

}  // namespace

ChainBroadcast::ChainBroadcast(const HostContext& context, const at::Tensor& tensor, int from_host)
    : context_(context), tensor_(tensor), from_(from_host) {}

void ChainBroadcast::expect(const Part& part) {
  const int nearer = context_.host() + (context_.host() < from_ ? 1 : -1);
  arrivals_.push_back(
      context_.between.recv(context_.hosts.owner(nearer, part.local_rank), at(part), bytes(part), kChannel));
}

void ChainBroadcast::send_to(int host, const Part& part) {
  if (host < 0 || host >= context_.hosts.count()) return;
  sends_.push_back(context_.between.send(context_.hosts.owner(host, part.local_rank), at(part), bytes(part), kChannel));
}

void ChainBroadcast::pass_on(const Part& part) {
  if (context_.host() <= from_) send_to(context_.host() - 1, part);
  if (context_.host() >= from_) send_to(context_.host() + 1, part);
}

void ChainBroadcast::wait_arrived(const Chunk& chunk) {
  for (const Part& part : chunk) {
    if (is_source() || !context_.owns(part.local_rank)) continue;
    arrivals_.front()->wait(context_.deadline);
    arrivals_.pop_front();
    pass_on(part);
  }
}

void ChainBroadcast::copy_mapped(const Chunk& chunk) {
  context_.within.arrive();
  for (const Part& part : chunk) {
    const int owner = context_.hosts.owner(context_.host(), part.local_rank);
    if (owner == context_.rank()) continue;
    context_.within.wait(owner, context_.deadline);
    std::memcpy(at(part), context_.mapped[owner] + part.range.begin * tensor_.element_size(), bytes(part));
  }
}

void ChainBroadcast::broadcast_on_host(const Chunk& chunk) {
  wait_arrived(chunk);
  if (!context_.mapped.empty()) return copy_mapped(chunk);
  const auto fill = [&](std::byte* to) {
    for (const Part& part : chunk) {
      if (context_.owns(part.local_rank)) std::memcpy(to, at(part), bytes(part));
      to += bytes(part);
    }
  };
  const auto use = [&] {
    std::size_t begin = 0;
    for (const Part& part : chunk) {
      const int owner = context_.hosts.owner(context_.host(), part.local_rank);
      if (owner != context_.rank())
        std::memcpy(at(part), context_.within.of(owner, context_.deadline) + begin, bytes(part));
      begin += bytes(part);
    }
  };
  context_.within.round(context_.deadline, fill, use);
}

void ChainBroadcast::finish() {
  for (const auto& sent : sends_) sent->wait(context_.deadline);
}

void broadcast_by_hosts(const HostContext& context, const at::Tensor& tensor, int root) {
  const auto chunks = chunks_by_local_rank(tensor, context.hosts, -1);
  ChainBroadcast broadcast(context, tensor, context.hosts.of(root));
  const bool is_root = context.rank() == root;
  for (const Chunk& chunk : chunks)
    for (const Part& part : chunk)
      if (!broadcast.is_source() && context.owns(part.local_rank)) broadcast.expect(part);
  for (const Chunk& chunk : chunks) {
    if (!broadcast.is_source()) {
      broadcast.broadcast_on_host(chunk);
      continue;
    }
    std::byte* begin = broadcast.at(chunk.front());
    const auto bytes = static_cast<std::size_t>(broadcast.at(chunk.back()) - begin) + broadcast.bytes(chunk.back());
    const auto fill = [&](std::byte* to) {
      if (is_root) std::memcpy(to, begin, bytes);
    };
    const auto use = [&] {
      if (!is_root) std::memcpy(begin, context.within.of(root, context.deadline), bytes);
    };
    context.within.round(context.deadline, fill, use);
    for (const Part& part : chunk)
      if (context.owns(part.local_rank)) broadcast.pass_on(part);
  }
  broadcast.finish();
}

}  // namespace muster::comm
