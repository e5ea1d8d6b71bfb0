#include "comm/pairwise.h"

#include <cstring>
#include <deque>
#include <tuple>

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>

#include "comm/pieces.h"
#include "comm/shared_memory/reduction.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

void combine(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  op == ReduceOp::product ? at::mul_out(out, a, b) : at::add_out(out, a, b);
}

void reduce_in_float(const at::Tensor& target, const std::vector<at::Tensor>& terms, ReduceOp op) {
  at::Tensor sum = terms[0].to(at::kFloat);
  for (std::size_t i = 1; i < terms.size(); ++i) combine(sum, sum, terms[i].to(at::kFloat), op);
  if (op == ReduceOp::mean) sum.div_(static_cast<double>(terms.size()));
  target.copy_(sum);
}

void reduce_in_order(const at::Tensor& target, const std::vector<at::Tensor>& terms, ReduceOp op) {
  std::vector<const void*> memory;
  for (const auto& term : terms) memory.push_back(term.const_data_ptr());
  void* const out = target.mutable_data_ptr();
  reduce_memory({&out, 1}, memory, static_cast<std::size_t>(target.numel()), target.scalar_type(), op);
}

/// Whether rank `from` sends rank `to` a tensor in an operation that allows different shapes.
bool must_send_tensor(const Operation& operation, int from, int to) {
  switch (operation.kind) {
    case OperationKind::all_gatherv:
    case OperationKind::all_gather_bytes:
    case OperationKind::all_to_all: return true;
    case OperationKind::gather:
    case OperationKind::gather_bytes: return to == operation.root;
    case OperationKind::scatter:
    case OperationKind::broadcast_bytes: return from == operation.root;
    default: return false;
  }
}

at::Tensor empty(const Header& header) {
  return at::empty(header.sizes(), at::TensorOptions().dtype(header.scalar_type()));
}

}  // namespace

void reduce_terms(const at::Tensor& target, const std::vector<at::Tensor>& terms, int own, ReduceOp op) {
  if (target.numel() == 0) return;
  if (terms.size() == 1) {
    if (target.const_data_ptr() != terms[0].const_data_ptr()) at::Tensor(target).copy_(terms[0]);
    return;
  }
  // For equal values such as 0.0 and -0.0, LibTorch's kernels choose by the position of the elements, and so by how
  // they are divided.
  if (op == ReduceOp::min || op == ReduceOp::max) return reduce_in_order(target, terms, op);
  bool is_half = at::isReducedFloatingType(target.scalar_type());
  if (is_half && (terms.size() > 2 || op == ReduceOp::mean)) return reduce_in_float(target, terms, op);
  at::Tensor out = target;
  at::Tensor partial = terms[own == 0 ? 1 : 0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    bool last = i + 1 == terms.size();
    combine(last ? out : partial, i == 1 ? terms[0] : partial, terms[i], op);
  }
  if (op == ReduceOp::mean) out.div_(static_cast<double>(terms.size()));
}

at::Tensor elements_at(const void* data, int64_t elements, const at::Tensor& like) {
  return at::from_blob(const_cast<void*>(data), {elements}, at::TensorOptions().dtype(like.scalar_type()));
}

std::unique_ptr<Collectives> make_pairwise(std::unique_ptr<Transport> transport) {
  return std::make_unique<Pairwise>(std::move(transport));
}

void Pairwise::run(Operation& operation, const std::string& group, TimePoint deadline) {
  Call call{operation, group, deadline};
  operation.piggybacks.assign(operation.piggyback ? size() : 0, 0);
  try {
    dispatch(call);
  } catch (const TransportFailure& failure) {
    if (failure.kind == TransportFailure::Kind::closed && failure.peer >= 0) throw_abort_cause(call, failure.peer);
    throw;
  }
}

void Pairwise::throw_abort_cause(const Call& call, int peer) {
  Frame frame;
  try {
    transport_->recv_frame(peer, frame, call.deadline);
  } catch (const TransportFailure& failure) {
    if (failure.kind == TransportFailure::Kind::aborted && failure.peer >= 0) throw;
    return;
  }
  if (read_header(frame).is_abort) check_headers({}, rank(), frame, peer, call.group);
}

void Pairwise::dispatch(const Call& call) {
  switch (call.operation.kind) {
    case OperationKind::all_reduce: return all_reduce(call);
    case OperationKind::all_gather: return all_gather(call);
    case OperationKind::reduce_scatter: return reduce_scatter(call);
    case OperationKind::broadcast: return broadcast(call);
    case OperationKind::reduce: return reduce(call);
    case OperationKind::scatter: return scatter(call);
    case OperationKind::send:
    case OperationKind::recv: return point_to_point(call);
    default: return exchange_uneven(call);
  }
}

std::vector<int> Pairwise::peers() const {
  std::vector<int> order;
  for (int step = 1; step < size(); ++step) order.push_back((rank() + step) % size());
  return order;
}

std::vector<Pairwise::SendRecv> Pairwise::headers_alone() const {
  std::vector<SendRecv> pairs;
  for (int peer : peers()) pairs.push_back({.peer = peer});
  return pairs;
}

void Pairwise::post_blocks(Requests& requests, int peer, void* data, std::size_t bytes, bool sending) {
  auto* at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes; done += kMaxBlockBytes) {
    std::size_t block = std::min(kMaxBlockBytes, bytes - done);
    requests.push_back(sending ? transport_->send(peer, at + done, block, 0)
                               : transport_->recv(peer, at + done, block, 0));
  }
}

void Pairwise::send_frames(const Call& call, const std::vector<SendRecv>& pairs) {
  Frame frame{};
  for (const auto& pair : pairs) {
    write_header(frame, make_header(call.operation, pair.sent, pair.bytes));
    if (pair.bytes > 0 && pair.bytes <= kInlineBytes) std::memcpy(payload(frame), pair.data, pair.bytes);
    transport_->send_frame(pair.peer, frame, call.deadline);
  }
}

Frame Pairwise::recv_frame(const Call& call, int peer, const at::Tensor* sent) {
  Frame frame;
  transport_->recv_frame(peer, frame, call.deadline);
  check_headers(make_header(call.operation, sent, 0), rank(), frame, peer, call.group);
  const Header header = read_header(frame);
  if (call.operation.piggyback) call.operation.piggybacks[peer] = header.piggyback;
  locations_[peer] = header.location;
  return frame;
}

void Pairwise::check_arrival(const Call& call, const SendRecv& pair, const Header& header) const {
  if (pair.expected) return check_bytes(header, *pair.expected, rank(), pair.peer, call.operation, call.group);
  const bool expects_tensor = must_send_tensor(call.operation, pair.peer, rank());
  if (expects_tensor != (header.sends_tensor != 0) || (!expects_tensor && header.bytes != 0))
    throw CommError("MU050",
                    formatted("rank {} sent rank {} {} in {} of group {}: do all ranks run the same build?", pair.peer,
                              rank(), expects_tensor ? "nothing where a tensor is due" : "a tensor where none is due",
                              describe(call.operation), call.group));
}

void Pairwise::exchange(const Call& call, const std::vector<SendRecv>& pairs, const Allocate& allocate) {
  Requests requests;
  for (const auto& pair : pairs)
    if (pair.expected.value_or(0) > kInlineBytes) post_blocks(requests, pair.peer, pair.into, *pair.expected, false);
  send_frames(call, pairs);
  for (const auto& pair : pairs)
    if (pair.bytes > kInlineBytes) post_blocks(requests, pair.peer, const_cast<void*>(pair.data), pair.bytes, true);
  for (const auto& pair : pairs) {
    Frame frame = recv_frame(call, pair.peer, pair.sent);
    Header header = read_header(frame);
    check_arrival(call, pair, header);
    void* into = pair.expected ? pair.into : header.sends_tensor ? allocate(pair.peer, header) : nullptr;
    if (header.bytes == 0) continue;
    if (header.bytes <= kInlineBytes) std::memcpy(into, payload(frame), header.bytes);
    else if (!pair.expected) post_blocks(requests, pair.peer, into, header.bytes, false);
  }
  for (auto& request : requests) request->wait(call.deadline);
}

bool Pairwise::all_agree(const Call& call, bool own) {
  const auto sent = static_cast<std::byte>(own);
  std::vector<std::byte> received(static_cast<std::size_t>(size()), sent);
  std::vector<SendRecv> pairs;
  for (int peer : peers())
    pairs.push_back({.peer = peer, .data = &sent, .bytes = 1, .into = &received[peer], .expected = 1});
  exchange(call, pairs);
  return std::count(received.begin(), received.end(), std::byte{0}) == 0;
}

void Pairwise::exchange_uneven(const Call& call) {
  auto& operation = call.operation;
  const bool keeps = operation.kind != OperationKind::barrier && operation.kind != OperationKind::subgroup;
  operation.results.assign(keeps ? size() : 0, at::Tensor());
  auto sent_to = [&](int to) -> const at::Tensor* {
    if (!must_send_tensor(operation, rank(), to)) return nullptr;
    return operation.parts.empty() ? &operation.in : &operation.parts[to];
  };
  std::vector<SendRecv> pairs;
  for (int peer : peers()) {
    const at::Tensor* sent = sent_to(peer);
    auto& pair = pairs.emplace_back(sent ? whole(peer, *sent) : SendRecv{.peer = peer});
    pair.sent = sent;
    pair.expected.reset();
  }
  exchange(call, pairs, [&](int peer, const Header& header) -> void* {
    operation.results[peer] = empty(header);
    return operation.results[peer].mutable_data_ptr();
  });
  const at::Tensor* own = sent_to(rank());
  if (own) operation.results[rank()] = own->clone();
}

/// The root sends one piece to every other rank, which passes it on to the others while more of it arrives.
class Pairwise::PieceBroadcast {
 public:
  PieceBroadcast(Pairwise& group, const Call& call)
      : group_(group), transport_(*group.transport_), call_(call), tensor_(call.operation.out), rank_(group.rank()),
        root_(call.operation.root), others_(group.peers()), pieces_(aligned_pieces(tensor_, group.size() - 1)) {}

  void run() {
    if (rank_ != root_) post_arrivals();
    const auto headers = group_.headers_alone();
    group_.send_frames(call_, headers);
    if (rank_ == root_) send_pieces();
    for (const auto& header : headers)
      group_.check_arrival(call_, header, read_header(group_.recv_frame(call_, header.peer, nullptr)));
    if (rank_ != root_) pass_on();
    for (auto& request : gathers_) request->wait(call_.deadline);
    for (auto& request : sends_) request->wait(call_.deadline);
  }

 private:
  /// The index of a rank's piece: ranks are counted from the one after the root.
  int place(int rank) const { return (rank - root_ - 1 + group_.size()) % group_.size(); }
  int64_t chunks(int rank) const { return pieces_.chunks(place(rank)); }

  Transport::Request send(int to, int owner, int64_t chunk) {
    const Range range = pieces_.of_chunk(place(owner), chunk);
    return transport_.send(to, at_element(tensor_, range.begin), bytes(range), 0);
  }

  Transport::Request recv(int from, int owner, int64_t chunk) {
    const Range range = pieces_.of_chunk(place(owner), chunk);
    return transport_.recv(from, at_element(tensor_, range.begin), bytes(range), 0);
  }

  std::size_t bytes(Range range) const { return static_cast<std::size_t>(range.size()) * tensor_.element_size(); }

  void post_arrivals() {
    for (int64_t chunk = 0; chunk < chunks(rank_); ++chunk) own_.push_back(recv(root_, rank_, chunk));
    for (int peer : others_)
      for (int64_t chunk = 0; peer != root_ && chunk < chunks(peer); ++chunk)
        gathers_.push_back(recv(peer, peer, chunk));
  }

  void send_pieces() {
    // Chunk by chunk, so that all peers can start to pass on. The first piece is the largest.
    for (int64_t chunk = 0; chunk < pieces_.chunks(0); ++chunk)
      for (int peer : others_)
        if (chunk < chunks(peer)) sends_.push_back(send(peer, peer, chunk));
  }

  void pass_on() {
    for (std::size_t chunk = 0; chunk < own_.size(); ++chunk) {
      own_[chunk]->wait(call_.deadline);
      for (int peer : others_)
        if (peer != root_) sends_.push_back(send(peer, rank_, static_cast<int64_t>(chunk)));
    }
  }

  Pairwise& group_;
  Transport& transport_;
  const Call& call_;
  const at::Tensor& tensor_;
  const int rank_;
  const int root_;
  const std::vector<int> others_;
  const Pieces pieces_;
  Requests own_, gathers_, sends_;
};

// A rank's piece is reduced chunk by chunk: while one chunk, still in cache, is reduced, the next one is in transit and
// the result of the last one is sent on. Scratch memory holds at most kWindow chunks per peer.
constexpr int64_t kWindow = 4;

/// One reduction of pieces while it runs.
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
    const auto headers = group_.headers_alone();
    group_.send_frames(call_, headers);
    for (int peer : others_) send_piece(peer);
    for (const auto& header : headers)
      group_.check_arrival(call_, header, read_header(group_.recv_frame(call_, header.peer, nullptr)));
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

  /// Whether `rank` receives the pieces of other ranks.
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
      // The result arrives in memory that is also sent from, but only after the peer has received all of it.
      if (gathers(rank_)) gathers_.push_back(transport_.recv(peer, at_element(target_, range.begin), bytes(range), 1));
    }
  }

  /// The destination of the sum of a chunk. If only the root's tensor may change, it is this rank's own slot in scratch
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
  const std::size_t peer_bytes_;  // bytes of scratch memory per peer
  std::byte* const memory_;
  Requests gathers_;
  std::deque<Transport::Request> sends_, results_;
  std::vector<std::deque<Transport::Request>> arrivals_;
  std::vector<at::Tensor> terms_;
};

void Pairwise::all_reduce(const Call& call) {
  const at::Tensor& out = call.operation.out;
  if (out.nbytes() > kWholeBytes) return PieceReduction(*this, call, out, out, Receivers::all).run();
  std::vector<SendRecv> pairs;
  std::vector<at::Tensor> terms(size(), out.view(-1));
  std::byte* into = scratch(out.nbytes() * size());
  for (int peer : peers()) {
    const auto& pair = pairs.emplace_back(whole(peer, out, into + out.nbytes() * peer));
    terms[peer] = elements_at(pair.into, out.numel(), out);
  }
  exchange(call, pairs);
  reduce_terms(terms[rank()], terms, rank(), call.operation.reduce);
}

void Pairwise::all_gather(const Call& call) {
  const auto& [in, out] = std::tie(call.operation.in, call.operation.out);
  auto* pieces = static_cast<std::byte*>(out.mutable_data_ptr());
  std::vector<SendRecv> pairs;
  for (int peer : peers()) pairs.push_back(whole(peer, in, pieces + in.nbytes() * peer));
  std::byte* own = pieces + in.nbytes() * rank();
  if (in.nbytes() > 0 && own != in.const_data_ptr()) std::memmove(own, in.const_data_ptr(), in.nbytes());
  exchange(call, pairs);
}

void Pairwise::reduce_scatter(const Call& call) {
  const auto& [in, out] = std::tie(call.operation.in, call.operation.out);
  if (out.nbytes() > kInlineBytes) return PieceReduction(*this, call, in, out, Receivers::owner).run();
  auto* pieces = static_cast<const std::byte*>(in.const_data_ptr());
  std::byte* into = scratch(out.nbytes() * size());
  std::vector<SendRecv> pairs;
  std::vector<at::Tensor> terms(size());
  for (int peer = 0; peer < size(); ++peer) {
    const SendRecv pair{.peer = peer,
                        .data = pieces + out.nbytes() * peer,
                        .bytes = out.nbytes(),
                        .into = into + out.nbytes() * peer,
                        .expected = out.nbytes()};
    terms[peer] = elements_at(peer == rank() ? pair.data : pair.into, out.numel(), out);
    if (peer != rank()) pairs.push_back(pair);
  }
  exchange(call, pairs);
  reduce_terms(out.view(-1), terms, rank(), call.operation.reduce);
}

void Pairwise::broadcast(const Call& call) {
  const auto& out = call.operation.out;
  if (out.nbytes() > kWholeBytes && size() > 2) return PieceBroadcast(*this, call).run();
  std::vector<SendRecv> pairs;
  for (int peer : peers()) {
    if (rank() == call.operation.root) pairs.push_back(whole(peer, out));
    else if (peer == call.operation.root) pairs.push_back(arrival(peer, out, out.mutable_data_ptr()));
    else pairs.push_back({.peer = peer});
  }
  exchange(call, pairs);
}

void Pairwise::reduce(const Call& call) {
  const auto& out = call.operation.out;
  if (out.nbytes() > kWholeBytes) return PieceReduction(*this, call, out, out, Receivers::root).run();
  const bool is_root = rank() == call.operation.root;
  std::byte* into = is_root ? scratch(out.nbytes() * size()) : nullptr;
  std::vector<SendRecv> pairs;
  std::vector<at::Tensor> terms(size(), out.view(-1));
  for (int peer : peers()) {
    if (is_root) {
      const auto& pair = pairs.emplace_back(arrival(peer, out, into + out.nbytes() * peer));
      terms[peer] = elements_at(pair.into, out.numel(), out);
    } else {
      pairs.push_back(peer == call.operation.root ? whole(peer, out) : SendRecv{.peer = peer});
    }
  }
  exchange(call, pairs);
  if (is_root) reduce_terms(terms[rank()], terms, rank(), call.operation.reduce);
}

void Pairwise::scatter(const Call& call) {
  auto& operation = call.operation;
  const bool is_root = rank() == operation.root;
  operation.results.assign(1, at::Tensor());
  std::vector<SendRecv> pairs;
  for (int peer : peers()) {
    SendRecv pair{.peer = peer};
    if (is_root) pair = whole(peer, operation.parts[peer]), pair.sent = &operation.parts[peer];
    if (peer == operation.root) pair.expected.reset();
    pairs.push_back(pair);
  }
  exchange(call, pairs, [&](int, const Header& header) -> void* {
    operation.results[0] = empty(header);
    return operation.results[0].mutable_data_ptr();
  });
  if (is_root) operation.results[0] = operation.parts[rank()].clone();
}

void Pairwise::point_to_point(const Call& call) {
  const auto& operation = call.operation;
  if (operation.kind == OperationKind::send) exchange(call, {whole(operation.root, operation.in)});
  else exchange(call, {arrival(operation.root, operation.out, operation.out.mutable_data_ptr())});
}

std::byte* Pairwise::scratch(std::size_t bytes) {
  if (!scratch_.defined() || scratch_.nbytes() < bytes)
    scratch_ = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
  return static_cast<std::byte*>(scratch_.mutable_data_ptr());
}

}  // namespace muster::comm
