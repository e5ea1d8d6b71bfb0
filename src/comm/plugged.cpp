#include "comm/plugged.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "comm/backend_calls.h"
#include "comm/header.h"
#include "comm/rank_index.h"
#include "comm/wait_policy.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

/// Size in bytes of a header. If shapes may differ, ranks exchange headers like those of frames first.
constexpr int64_t kHeaderRow = sizeof(Header);

at::Tensor header_row(const Operation& operation, const at::Tensor& sent) {
  const Header header = make_header(operation, &sent, sent.nbytes());
  at::Tensor row = at::empty({kHeaderRow}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(row.mutable_data_ptr(), &header, sizeof header);
  return row;
}

class Plugged final : public Collectives {
 public:
  Plugged(c10::intrusive_ptr<c10d::Backend> backend, SplitBackend split)
      : backend_(std::move(backend)), split_(std::move(split)) {}

  int rank() const noexcept override { return backend_->getRank(); }
  int size() const noexcept override { return backend_->getSize(); }
  void run(Operation& operation, const std::string& group, TimePoint deadline) override;

  void abort(const std::string&) noexcept override { abort_backend(*backend_); }
  void close() noexcept override {}

  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    int new_rank = rank_index(ranks, rank());
    return std::make_unique<Plugged>(split_(name, new_rank, static_cast<int>(ranks.size())), split_);
  }

 private:
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int peer = -1) const;
  at::Tensor all_gathered(const at::Tensor& in) const;
  std::vector<at::Tensor> uneven(const Operation& operation, const at::Tensor& in) const;
  /// The header that `from` announced, once it fits `mine`. Throws: CommError (MU050).
  Header announced(const Header& mine, const at::Tensor& row, int from) const;
  at::Tensor scattered(const Operation& operation) const;
  void run_uneven(Operation& operation);

  c10::intrusive_ptr<c10d::Backend> backend_;
  SplitBackend split_;
  std::string group_;
  TimePoint deadline_;
};

void Plugged::wait(const c10::intrusive_ptr<c10d::Work>& work, int peer) const {
  if (!work) return;
  try {
    if (work->wait(left_until(deadline_))) return;
  } catch (const std::exception& failure) {
    bool late = std::chrono::steady_clock::now() >= deadline_;
    throw TransportFailure{late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer,
                           failure.what()};
  }
  throw TransportFailure{TransportFailure::Kind::aborted, -1, "the backend ended the wait"};
}

at::Tensor Plugged::all_gathered(const at::Tensor& in) const {
  at::Tensor out = at::empty({size() * in.numel()}, in.options());
  at::Tensor flat = in.view(-1);
  wait(backend_->_allgather_base(out, flat));
  return out;
}

Header Plugged::announced(const Header& mine, const at::Tensor& row, int from) const {
  Frame frame{};
  std::memcpy(frame.bytes.data(), row.const_data_ptr(), sizeof(Header));
  check_headers(mine, rank(), frame, from, group_);
  const Header theirs = read_header(frame);
  if (!theirs.sends_tensor)
    throw CommError("MU050", formatted("rank {} sent rank {} nothing where a tensor is due in {} of group {}", from,
                                       rank(), name_of(mine.kind), group_));
  return theirs;
}

/// Exchanges headers first, then payloads padded to the largest: no backend takes uneven parts.
std::vector<at::Tensor> Plugged::uneven(const Operation& operation, const at::Tensor& in) const {
  const Header mine = make_header(operation, &in, in.nbytes());
  const at::Tensor rows = all_gathered(header_row(operation, in)).view({size(), kHeaderRow});
  std::vector<Header> headers;
  int64_t longest = 0;
  for (int r = 0; r < size(); ++r) {
    headers.push_back(announced(mine, rows[r], r));
    longest = std::max(longest, c10::multiply_integers(headers.back().sizes()));
  }
  at::Tensor padded = at::zeros({longest}, in.options());
  padded.narrow(0, 0, in.numel()).copy_(in.view(-1));
  at::Tensor gathered = longest ? all_gathered(padded) : padded;
  std::vector<at::Tensor> results;
  for (int r = 0; r < size(); ++r) {
    const auto shape = headers[r].sizes();
    results.push_back(gathered.narrow(0, longest * r, c10::multiply_integers(shape)).view(shape).clone());
  }
  return results;
}

at::Tensor Plugged::scattered(const Operation& operation) const {
  const bool is_root = rank() == operation.root;
  std::vector<at::Tensor> rows;
  for (const auto& part : operation.parts) rows.push_back(header_row(operation, part));
  std::vector<at::Tensor> shapes{is_root ? at::stack(rows) : at::empty({size(), kHeaderRow}, at::kByte)};
  c10d::BroadcastOptions how;
  how.rootRank = operation.root;
  wait(backend_->broadcast(shapes, how), operation.root);
  for (int to = 0; is_root && to < size(); ++to) {
    std::vector<at::Tensor> part{operation.parts[to]};
    if (to != rank() && part[0].numel() > 0) wait(backend_->send(part, to, 0), to);
  }
  if (is_root) return operation.parts[rank()].clone();
  const Header own = announced(make_header(operation, nullptr, 0), shapes[0][rank()].contiguous(), operation.root);
  std::vector<at::Tensor> part{at::empty(own.sizes(), own.scalar_type())};
  if (part[0].numel() > 0) wait(backend_->recv(part, operation.root, 0), operation.root);
  return part[0];
}

void Plugged::run_uneven(Operation& operation) {
  auto bytes = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor : at::empty({0}, at::kByte); };
  auto& results = operation.results;
  switch (operation.kind) {
    case OperationKind::all_gatherv:
    case OperationKind::gather: results = uneven(operation, operation.in); break;
    case OperationKind::all_gather_bytes:
    case OperationKind::gather_bytes:
    case OperationKind::broadcast_bytes: results = uneven(operation, bytes(operation.in)); break;
    case OperationKind::scatter: results.assign(1, scattered(operation)); break;
    case OperationKind::all_to_all: {
      results.assign(size(), at::Tensor());
      for (int r = 0; r < size(); ++r) {
        auto to_r = uneven(operation, operation.parts[r]);
        if (r == rank()) results = std::move(to_r);
      }
      break;
    }
    default: break;
  }
}

void Plugged::run(Operation& operation, const std::string& group, TimePoint deadline) {
  group_ = group;
  deadline_ = deadline;
  if (has_backend_call(operation.kind)) {
    std::vector<at::Tensor> kept;
    wait(call_backend(*backend_, operation, kept), is_point_to_point(operation.kind) ? operation.root : -1);
    return finish_mean(operation, rank(), size());
  }
  if (operation.kind == OperationKind::barrier || operation.kind == OperationKind::subgroup)
    return wait(backend_->barrier());
  run_uneven(operation);
}

}  // namespace

std::unique_ptr<Collectives> make_plugged(c10::intrusive_ptr<c10d::Backend> backend, SplitBackend split) {
  return std::make_unique<Plugged>(std::move(backend), std::move(split));
}

}  // namespace muster::comm
