#include "comm/hierarchical/hierarchical.h"

#include <deque>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "comm/error_text.h"
#include "comm/handshake.h"
#include "comm/pieces.h"
#include "comm/shared_memory/reduction.h"
#include "comm/shared_memory/shared_collectives.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/communicator.h"
#include "muster/comm/transport.h"

namespace muster::comm {
namespace {

// Results arrive on a different channel than sums.
constexpr int kSums = 0, kResults = 1;

/// Sends parts of a tensor from one host to all ranks. Between hosts, the owners of a local rank form a chain and pass
/// parts away from the source in both directions. Within a host, parts go through its staging.
class ChainBroadcast {
 public:
  /// `tensor` is filled part by part.
  ChainBroadcast(const HostContext& context, const at::Tensor& tensor, int from_host)
      : context_(context), tensor_(tensor), from_(from_host) {}

  bool is_source() const noexcept { return context_.host() == from_; }
  /// On hosts other than the source: posts the receive of a part that this rank owns. The memory that is received into
  /// must no longer be needed once a host nearer to the source sends.
  void expect(const Part& part) {
    const int nearer = context_.host() + (context_.host() < from_ ? 1 : -1);
    arrivals_.push_back(
        context_.between.recv(context_.hosts.owner(nearer, part.local_rank), at(part), bytes(part), kResults));
  }
  /// On the source: sends a part that this rank owns to the next hosts.
  void pass_on(const Part& part) {
    if (context_.host() <= from_) send_to(context_.host() - 1, part);
    if (context_.host() >= from_) send_to(context_.host() + 1, part);
  }
  /// Gives all ranks of this host the parts of a chunk. On hosts other than the source, first waits for the parts that
  /// this rank expects and passes them on. Collective on the host, in one order.
  void broadcast_on_host(const Chunk& chunk) {
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
  /// Waits until everything that this rank passed on has been sent. Mapped memory may still be read afterwards.
  void finish() {
    for (const auto& sent : sends_) sent->wait(context_.deadline);
  }

  std::byte* at(const Part& part) const { return at_element(tensor_, part.range.begin); }
  std::size_t bytes(const Part& part) const {
    return static_cast<std::size_t>(part.range.size()) * tensor_.element_size();
  }

 private:
  void send_to(int host, const Part& part) {
    if (host < 0 || host >= context_.hosts.count()) return;
    sends_.push_back(
        context_.between.send(context_.hosts.owner(host, part.local_rank), at(part), bytes(part), kResults));
  }
  void wait_arrived(const Chunk& chunk) {
    for (const Part& part : chunk) {
      if (is_source() || !context_.owns(part.local_rank)) continue;
      arrivals_.front()->wait(context_.deadline);
      arrivals_.pop_front();
      pass_on(part);
    }
  }
  void copy_mapped(const Chunk& chunk) {
    context_.within.arrive();
    for (const Part& part : chunk) {
      const int owner = context_.hosts.owner(context_.host(), part.local_rank);
      if (owner == context_.rank()) continue;
      context_.within.wait(owner, context_.deadline);
      std::memcpy(at(part), context_.mapped[owner] + part.range.begin * tensor_.element_size(), bytes(part));
    }
  }

  const HostContext& context_;
  const at::Tensor& tensor_;
  const int from_;
  std::deque<Transport::Request> arrivals_;
  std::vector<Transport::Request> sends_;
};

/// Sends the root's tensor to all ranks. Collective.
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

/// Fills `out` with `in` of each rank; `in` may be this rank's part of `out`. Each rank's values are sent once to each
/// other host: each rank of a host receives some ranks' blocks from the other hosts, and then shares
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

/// A reduction along the hosts, in their order: a pipelined chain.
/// Why: docs/decisions/0117-sums-along-the-hosts.md.
struct ChainReduction {
  const at::Tensor& source;
  /// Receives the results: all of them (with the shape of the source), those of this rank's piece, or none.
  const at::Tensor& target;
  std::vector<Chunk> chunks;
  ReduceOp op = ReduceOp::sum;
  bool two_level = false;  ///< whether each host first reduces its ranks' values; otherwise in rank order
};

// Bytes of the memory in which sums that go to or come from one rank wait.
constexpr std::size_t kWindowBytes = std::size_t{2} << 20;
// A host waits for the result of a chunk this many chunks later per host between it and the last one.
constexpr int64_t kLagPerHost = 4;

at::ScalarType summed_in(const at::Tensor& tensor, ReduceOp op) {
  const bool rounds = op != ReduceOp::min && op != ReduceOp::max;
  return rounds && at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

at::Tensor elements(const void* data, int64_t count, at::ScalarType dtype) {
  return at::from_blob(const_cast<void*>(data), {count}, at::TensorOptions().dtype(dtype));
}

/// The owner of a part reduces the values of its host's ranks, combines them with the sum that the owner on the
/// previous host has sent, and sends the result to the next host; on the last host the reduction is complete. Until
/// then float16 and bfloat16 are sent as float32.
class ChainReducer {
 public:
  /// `scratch` returns memory of that many bytes.
  ChainReducer(const HostContext& context, const ChainReduction& sums,
               const std::function<std::byte*(std::size_t)>& scratch)
      : context_(context), sums_(sums), dtype_(sums.source.scalar_type()), wide_(summed_in(sums.source, sums.op)),
        host_(context.host()), last_(context.hosts.count() - 1), broadcast_(context, sums.target, last_) {
    divide_memory(scratch);
  }

  void run() {
    const auto chunks = static_cast<int64_t>(sums_.chunks.size());
    const bool shares = chunks > 0 && sums_.chunks.front().front().receiver < 0;
    const int64_t lag = shares ? kLagPerHost * (last_ - host_) : 0;
    for (std::size_t i = 0; i < window_; ++i) expect_sum();
    expect_results();
    for (int64_t i = 0; i < chunks + lag; ++i) {
      if (i < chunks) reduce(sums_.chunks[i]);
      if (shares && i >= lag) broadcast_.broadcast_on_host(sums_.chunks[i - lag]);
    }
    for (const auto& result : results_) result->wait(context_.deadline);
    for (const auto& sent : sends_)
      if (sent) sent->wait(context_.deadline);
    broadcast_.finish();
    if (!context_.mapped.empty()) context_.end_reading();
  }

 private:
  std::size_t bytes(const Part& part, at::ScalarType dtype) const {
    return static_cast<std::size_t>(part.range.size()) * at::elementSize(dtype);
  }

  void divide_memory(const std::function<std::byte*(std::size_t)>& scratch) {
    int64_t longest = 1;
    for (const Chunk& chunk : sums_.chunks)
      for (const Part& part : chunk) {
        longest = std::max(longest, part.range.size());
        if (context_.owns(part.local_rank)) owned_.push_back(&part);
      }
    longest = (longest + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
    slot_ = static_cast<std::size_t>(longest) * at::elementSize(wide_);
    window_ = std::min(std::max<std::size_t>(kWindowBytes / slot_, 2), std::max<std::size_t>(owned_.size(), 1));
    const std::size_t terms = wide_ == dtype_ ? 0 : static_cast<std::size_t>(context_.hosts.size(host_)) + 1;
    memory_ = scratch(slot_ * (2 * window_ + terms));
    arrivals_.resize(window_);
    sends_.resize(window_);
  }
  std::byte* arrived(std::size_t index) const { return memory_ + slot_ * (index % window_); }
  std::byte* summed(std::size_t index) const { return memory_ + slot_ * (window_ + index % window_); }
  std::byte* widened(std::size_t term) const { return memory_ + slot_ * (2 * window_ + term); }

  /// Posts the receive of the next sum from the previous host.
  void expect_sum() {
    if (host_ == 0 || expected_ == owned_.size()) return;
    const Part& part = *owned_[expected_];
    arrivals_[expected_ % window_] = context_.between.recv(context_.hosts.owner(host_ - 1, part.local_rank),
                                                           arrived(expected_), bytes(part, wide_), kSums);
    ++expected_;
  }

  /// Where this rank puts the result of a part that no other rank gets. This may be in the source itself: the result
  /// arrives only after the source's values were sent.
  std::byte* place_of(const Part& part) const {
    const bool is_piece = sums_.target.numel() < sums_.source.numel();
    return at_element(sums_.target, part.range.begin - (is_piece ? context_.rank() * sums_.target.numel() : 0));
  }
  void expect_results() {
    for (const Chunk& chunk : sums_.chunks)
      for (const Part& part : chunk)
        if (const int from = context_.hosts.owner(last_, part.local_rank);
            part.receiver == context_.rank() && from != context_.rank())
          results_.push_back(context_.between.recv(from, place_of(part), bytes(part, dtype_), kResults));
  }

  void reduce(const Chunk& chunk) {
    const auto fill = [&](std::byte* to) {
      for (const Part& part : chunk) {
        const std::size_t size = bytes(part, dtype_);
        if (!context_.owns(part.local_rank)) std::memcpy(to, at_element(sums_.source, part.range.begin), size);
        to += size;
      }
    };
    const auto use = [&] {
      std::size_t begin = 0;
      for (const Part& part : chunk) {
        if (context_.owns(part.local_rank)) reduce(part, begin);
        begin += bytes(part, dtype_);
      }
    };
    if (context_.mapped.empty()) context_.within.round(context_.deadline, fill, use);
    else use();
  }

  /// The values that a rank of this host contributes to a part; in staging they are at offset `begin`.
  const std::byte* term_of(int rank, const Part& part, std::size_t begin) const {
    if (rank == context_.rank()) return at_element(sums_.source, part.range.begin);
    if (!context_.mapped.empty()) return context_.mapped[rank] + part.range.begin * sums_.source.element_size();
    return context_.within.of(rank, context_.deadline) + begin;
  }

  /// Collects the values of this host's ranks for a part, in the dtype in which they are summed.
  void collect_terms(const Part& part, std::size_t begin) {
    terms_.clear();
    for (int rank = context_.hosts.first(host_); rank < context_.hosts.first(host_) + context_.hosts.size(host_);
         ++rank) {
      const void* term = term_of(rank, part, begin);
      if (wide_ != dtype_) {
        const at::Tensor wide = elements(widened(terms_.size()), part.range.size(), wide_);
        wide.copy_(elements(term, part.range.size(), dtype_));
        term = wide.const_data_ptr();
      }
      terms_.push_back(term);
    }
  }
  /// Reduces the terms to `into`. If the only term is this rank's own tensor, it stays where it is. Returns the result.
  const void* reduce_terms_to(void* into, const Part& part) {
    if (terms_.size() == 1) {
      if (wide_ == dtype_ || terms_.front() == into) return terms_.front();
      return std::memcpy(into, terms_.front(), bytes(part, wide_));
    }
    const ReduceOp op = sums_.op == ReduceOp::mean ? ReduceOp::sum : sums_.op;
    reduce_memory({&into, 1}, terms_, static_cast<std::size_t>(part.range.size()), wide_, op);
    return into;
  }

  void reduce(const Part& part, std::size_t begin) {
    const std::size_t index = reduced_++;
    collect_terms(part, begin);
    // The last sum in this memory must have been sent first.
    if (auto& sent = sends_[index % window_]) sent->wait(context_.deadline), sent.reset();
    if (sums_.two_level) terms_ = {reduce_terms_to(summed(index), part)};
    if (host_ > 0) {
      arrivals_[index % window_]->wait(context_.deadline);
      terms_.insert(terms_.begin(), arrived(index));
    }
    host_ < last_ ? send_on(part, index) : finish(part, index);
    expect_sum();
  }

  void send_on(const Part& part, std::size_t index) {
    const void* sum = reduce_terms_to(summed(index), part);
    sends_[index % window_] =
        context_.between.send(context_.hosts.owner(host_ + 1, part.local_rank), sum, bytes(part, wide_), kSums);
    if (part.receiver < 0) broadcast_.expect(part);
  }

  /// On the last host: computes the result and puts it where it belongs.
  void finish(const Part& part, std::size_t index) {
    const bool goes = part.receiver >= 0 && part.receiver != context_.rank();
    std::byte* result = goes ? summed(index) : place_of(part);
    if (wide_ == dtype_) {
      reduce_terms_to(result, part);
      divide(result, part);
    } else {
      std::byte* sum = widened(static_cast<std::size_t>(context_.hosts.size(host_)));
      reduce_terms_to(sum, part);
      divide(sum, part);
      elements(result, part.range.size(), dtype_).copy_(elements(sum, part.range.size(), wide_));
    }
    if (part.receiver < 0) broadcast_.pass_on(part);
    else if (goes)
      sends_[index % window_] = context_.between.send(part.receiver, result, bytes(part, dtype_), kResults);
  }
  void divide(void* sum, const Part& part) const {
    if (sums_.op == ReduceOp::mean)
      elements(sum, part.range.size(), wide_).div_(static_cast<double>(context_.between.size()));
  }

  const HostContext& context_;
  const ChainReduction& sums_;
  const at::ScalarType dtype_, wide_;  ///< dtype of values and results, and dtype in which they are summed
  const int host_, last_;
  ChainBroadcast broadcast_;
  std::vector<const Part*> owned_;
  std::size_t slot_ = 0;    ///< bytes of memory for one part
  std::size_t window_ = 0;  ///< number of slots for sums that have arrived, and for sums that were computed
  std::byte* memory_ = nullptr;
  std::size_t expected_ = 0, reduced_ = 0;  ///< numbers of owned parts whose receive was posted, and that were reduced
  std::vector<Transport::Request> arrivals_, sends_;
  std::vector<Transport::Request> results_;
  std::vector<const void*> terms_;
};

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
    exchange_frames(
        between, deadline, [&](int) { return frame; },
        [&](int peer, const Frame& theirs) {
          all[peer].assign(reinterpret_cast<const char*>(payload(theirs)),
                           std::min<std::size_t>(read_header(theirs).bytes, kInlineBytes));
        });
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
    ChainReducer(context, {source, operation.out, std::move(chunks), operation.reduce, two_level_sums_},
                 [this](std::size_t bytes) { return scratch(bytes); })
        .run();
  };
  switch (operation.kind) {
    case OperationKind::all_gather: return BlockGather(context, operation.in, operation.out).run();
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
