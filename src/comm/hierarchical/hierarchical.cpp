#include "comm/hierarchical/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/error_text.h"
#include "comm/hierarchical/chain_broadcast.h"
#include "comm/hierarchical/chain_reduction.h"
#include "comm/hierarchical/gathering.h"
#include "comm/hierarchical/host_chunks.h"
#include "comm/shared_memory/shared_collectives.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

/// Why the first rank with a problem cannot join a new group; empty if no rank has one. Collective.
std::string first_trouble(Transport& between, const std::string& own, TimePoint deadline) {
  Frame frame{};
  Header header;
  header.bytes = std::min(own.size(), kInlineBytes);
  write_header(frame, header);
  std::memcpy(payload(frame), own.data(), header.bytes);
  std::vector<std::string> all(static_cast<std::size_t>(between.size()));
  all[between.rank()] = own;
  try {
    for (int peer = 0; peer < between.size(); ++peer)
      if (peer != between.rank()) between.send_frame(peer, frame, deadline);
    for (int peer = 0; peer < between.size(); ++peer) {
      if (peer == between.rank()) continue;
      between.recv_frame(peer, frame, deadline);
      all[peer].assign(reinterpret_cast<const char*>(payload(frame)),
                       std::min<std::size_t>(read_header(frame).bytes, kInlineBytes));
    }
  } catch (const TransportFailure& failure) {
    return formatted("rank {} lost rank {} while a group was formed: {}", between.rank(), failure.peer,
                     short_error_text(failure.detail));
  }
  const auto found = std::find_if(all.begin(), all.end(), [](const std::string& one) { return !one.empty(); });
  return found == all.end() ? "" : formatted("rank {}: {}", found - all.begin(), *found);
}

}  // namespace

Hierarchical::Hierarchical(std::unique_ptr<Transport> between, std::unique_ptr<SharedAreas> within, Hosts hosts,
                           bool two_level_sums, std::chrono::milliseconds timeout)
    : Pairwise(std::move(between)), hosts_(std::move(hosts)), two_level_sums_(two_level_sums), timeout_(timeout),
      within_(std::move(within), hosts_.first(hosts_.of(rank()))), buffers_(rank()) {}

void Hierarchical::abort(const std::string& cause) noexcept {
  within_.abort(cause);
  Pairwise::abort(cause);
}

void Hierarchical::close() noexcept {
  within_.close();
  Pairwise::close();
}

bool Hierarchical::goes_by_hosts(const Operation& operation) const {
  switch (operation.kind) {
    case OperationKind::all_gather: return operation.in.nbytes() > kInlineBytes;
    case OperationKind::reduce_scatter: return operation.out.nbytes() > kInlineBytes;
    case OperationKind::all_reduce:
    case OperationKind::broadcast:
    case OperationKind::reduce: return operation.out.nbytes() > kWholeBytes;
    default: return false;
  }
}

void Hierarchical::dispatch(const Call& call) {
  const Operation& operation = call.operation;
  if (operation.kind == OperationKind::allocate_shared_buffer) return allocate_buffer(call);
  if (!goes_by_hosts(operation)) return Pairwise::dispatch(call);
  const bool reads_in = operation.kind == OperationKind::reduce_scatter;
  HostContext context{transport(), within_, hosts_, call.deadline};
  context.mapped = map_tensors(call, reads_in ? operation.in : operation.out);
  run_by_hosts(call, context);
}

void Hierarchical::allocate_buffer(const Call& call) {
  exchange_headers(call);
  const auto bytes = static_cast<std::size_t>(call.operation.list.at(0));
  auto buffer = within_.allocate_buffer(bytes, ++last_buffer_number_, size(), call.deadline);
  if (!all_agree(call, buffer != nullptr)) return;
  buffers_.add(buffer);
  call.operation.shared_buffer = std::move(buffer);
}

std::vector<const std::byte*> Hierarchical::map_tensors(const Call& call, const at::Tensor& tensor) {
  const auto buffer = reduces(call.operation.kind) ? buffers_.of(tensor) : nullptr;
  SharedMemoryLocation& own = call.operation.location;
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  if (buffer) own = {buffer->number, static_cast<uint64_t>(begin - buffer->parts[rank()])};
  exchange_headers(call);
  if (!buffer) return {};
  std::vector<const std::byte*> mapped(static_cast<std::size_t>(size()));
  for (int peer = within_.first(); peer < within_.first() + within_.size(); ++peer) {
    const SharedMemoryLocation theirs = peer == rank() ? own : location_of(peer);
    if (theirs.buffer != own.buffer || theirs.offset > buffer->bytes - tensor.nbytes()) return {};
    mapped[peer] = buffer->parts[peer] + theirs.offset;
  }
  return mapped;
}

void Hierarchical::run_by_hosts(const Call& call, const HostContext& context) {
  const Operation& operation = call.operation;
  const auto reduced = [&](const at::Tensor& source, std::vector<Chunk> chunks) {
    reduce_by_hosts(context, {source, operation.out, std::move(chunks), operation.reduce, two_level_sums_},
                    [this](std::size_t bytes) { return scratch(bytes); });
  };
  switch (operation.kind) {
    case OperationKind::all_gather: return all_gather_by_hosts(context, operation.in, operation.out);
    case OperationKind::broadcast: return broadcast_by_hosts(context, operation.out, operation.root);
    case OperationKind::reduce_scatter: return reduced(operation.in, chunks_of_pieces(operation.in, hosts_));
    case OperationKind::reduce:
      return reduced(operation.out, chunks_by_local_rank(operation.out, hosts_, operation.root));
    default: return reduced(operation.out, chunks_by_local_rank(operation.out, hosts_, -1));
  }
}

std::unique_ptr<Collectives> Hierarchical::split(const std::vector<int>& ranks, const std::string& name) {
  Hosts hosts = hosts_.of_ranks(ranks);
  if (hosts.count() == 1) return std::make_unique<SharedCollectives>(within_.split(ranks, name));
  auto between = transport().split(ranks, name);
  if (!hosts.obstacle().empty()) return make_pairwise(std::move(between));
  auto areas = split_areas(*between, ranks, hosts, name);
  return std::make_unique<Hierarchical>(std::move(between), std::move(areas), std::move(hosts), two_level_sums_,
                                        timeout_);
}

std::unique_ptr<SharedAreas> Hierarchical::split_areas(Transport& between, const std::vector<int>& ranks,
                                                       const Hosts& hosts, const std::string& name) {
  const int host = hosts.of(between.rank());
  const auto begin = ranks.begin() + hosts.first(host);
  std::unique_ptr<SharedAreas> areas;
  std::string trouble;
  try {
    areas = within_.split({begin, begin + hosts.size(host)}, name);
  } catch (const CommError& failure) {
    trouble = failure.message();
  }
  const std::string first = first_trouble(between, trouble, TimePoint::clock::now() + timeout_);
  if (!first.empty()) throw CommError("MU401", first);
  return areas;
}

}  // namespace muster::comm
