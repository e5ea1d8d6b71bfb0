#include "dist/plugged.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::dist {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return c10d::ReduceOp::MIN;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    case ReduceOp::product: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::sum:
    case ReduceOp::mean: break;  // a mean is a sum, divided here: not every backend has it
  }
  return c10d::ReduceOp::SUM;
}

/// Shapes that differ travel first, as rows of this many numbers: dtype, count of dimensions, sizes.
constexpr int64_t kShapeRow = 66;

at::Tensor shape_row(const at::Tensor& tensor) {
  at::Tensor row = at::zeros({kShapeRow}, at::TensorOptions().dtype(at::kLong));
  auto* numbers = row.mutable_data_ptr<int64_t>();
  numbers[0] = static_cast<int64_t>(tensor.scalar_type());
  numbers[1] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), numbers + 2);
  return row;
}

class Plugged final : public Collectives {
 public:
  Plugged(c10::intrusive_ptr<c10d::Backend> backend, c10::DeviceType device, SplitBackend split)
      : backend_(std::move(backend)), device_(device), split_(std::move(split)) {}

  int rank() const noexcept override { return backend_->getRank(); }
  int size() const noexcept override { return backend_->getSize(); }
  void run(Operation& operation, const std::string& group, TimePoint deadline) override;

  void abort(const std::string&) noexcept override {
    try {
      backend_->abort();
    } catch (const std::exception&) {
      // A backend without abort ends its waits by its own time-out.
    }
  }
  void close() noexcept override {}

  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    if (!split_) throw CommError("MU061", formatted("backend {} was adopted as one group and cannot be split", backend_->getBackendName()));
    int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    return std::make_unique<Plugged>(split_(name, place, static_cast<int>(ranks.size())), device_, split_);
  }

 private:
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int peer = -1) const;
  void mean(at::Tensor tensor, ReduceOp op) const {
    if (op == ReduceOp::mean) tensor.div_(size());
  }
  at::Tensor all_gathered(at::Tensor in) const;
  std::vector<at::Tensor> uneven(const at::Tensor& in) const;
  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions().dtype(dtype).device(device_); }
  at::Tensor scattered(const Operation& operation) const;
  void run_uneven(Operation& operation);

  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::DeviceType device_;
  SplitBackend split_;
  TimePoint deadline_;
};

void Plugged::wait(const c10::intrusive_ptr<c10d::Work>& work, int peer) const {
  if (!work) return;
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
  try {
    if (work->wait(std::max(left, std::chrono::milliseconds(1)))) return;
  } catch (const std::exception& failure) {
    bool late = std::chrono::steady_clock::now() >= deadline_;
    throw TransportFailure{late ? TransportFailure::Kind::timeout : TransportFailure::Kind::closed, peer, failure.what()};
  }
  throw TransportFailure{TransportFailure::Kind::aborted, -1, "the backend ended the wait"};
}

at::Tensor Plugged::all_gathered(at::Tensor in) const {
  at::Tensor out = at::empty({size() * in.numel()}, in.options());
  at::Tensor flat = in.view(-1);
  wait(backend_->_allgather_base(out, flat));
  return out;
}

/// Shapes first, then payloads padded to the largest: no backend takes uneven parts.
std::vector<at::Tensor> Plugged::uneven(const at::Tensor& in) const {
  const at::Tensor row = shape_row(in);
  const auto* numbers = row.const_data_ptr<int64_t>();
  at::Tensor rows = all_gathered(row.to(device_)).cpu();
  const auto* all = rows.const_data_ptr<int64_t>();
  int64_t longest = 0;
  std::vector<std::vector<int64_t>> shapes;
  for (int r = 0; r < size(); ++r) {
    const int64_t* one = all + r * kShapeRow;
    if (one[0] != numbers[0])
      throw CommError("MU050", formatted("rank {} gathers {} and rank {} {}", rank(), name_of(in.scalar_type()), r,
                                      name_of(static_cast<at::ScalarType>(one[0]))));
    shapes.emplace_back(one + 2, one + 2 + one[1]);
    longest = std::max(longest, c10::multiply_integers(shapes.back()));
  }
  at::Tensor padded = at::zeros({longest}, in.options());
  padded.narrow(0, 0, in.numel()).copy_(in.view(-1));
  at::Tensor gathered = longest ? all_gathered(padded) : padded;
  std::vector<at::Tensor> results;
  for (int r = 0; r < size(); ++r) {
    int64_t elements = c10::multiply_integers(shapes[r]);
    results.push_back(gathered.narrow(0, longest * r, elements).view(shapes[r]).clone());
  }
  return results;
}

at::Tensor Plugged::scattered(const Operation& operation) const {
  const bool is_root = rank() == operation.root;
  std::vector<at::Tensor> rows;
  for (const auto& part : operation.parts) rows.push_back(shape_row(part));
  std::vector<at::Tensor> shapes{is_root ? at::stack(rows).to(device_) : at::empty({size(), kShapeRow}, options(at::kLong))};
  c10d::BroadcastOptions how;
  how.rootRank = operation.root;
  wait(backend_->broadcast(shapes, how), operation.root);
  for (int to = 0; is_root && to < size(); ++to) {
    std::vector<at::Tensor> part{operation.parts[to]};
    if (to != rank() && part[0].numel() > 0) wait(backend_->send(part, to, 0), to);
  }
  if (is_root) return operation.parts[rank()].clone();
  const at::Tensor own = shapes[0][rank()].cpu();
  const auto* numbers = own.const_data_ptr<int64_t>();
  at::IntArrayRef shape(numbers + 2, static_cast<std::size_t>(numbers[1]));
  std::vector<at::Tensor> part{at::empty(shape, options(static_cast<at::ScalarType>(numbers[0])))};
  if (part[0].numel() > 0) wait(backend_->recv(part, operation.root, 0), operation.root);
  return part[0];
}

void Plugged::run_uneven(Operation& operation) {
  auto bytes = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device_) : at::empty({0}, options(at::kByte)); };
  auto& results = operation.results;
  switch (operation.kind) {
    case OperationKind::all_gather_uneven:
    case OperationKind::gather: results = uneven(operation.in); break;
    case OperationKind::all_gather_bytes:
    case OperationKind::gather_bytes:
    case OperationKind::broadcast_bytes:
      results = uneven(bytes(operation.in));
      for (auto& result : results) result = result.cpu();
      break;
    case OperationKind::scatter: results.assign(1, scattered(operation)); break;
    case OperationKind::all_to_all: {
      results.assign(size(), at::Tensor());
      for (int r = 0; r < size(); ++r) {
        auto to_r = uneven(operation.parts[r]);
        if (r == rank()) results = std::move(to_r);
      }
      break;
    }
    default: break;
  }
}

void Plugged::run(Operation& operation, const std::string&, TimePoint deadline) {
  deadline_ = deadline;
  std::vector<at::Tensor> tensors{operation.out.defined() ? operation.out : operation.in};
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      c10d::AllreduceOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      wait(backend_->allreduce(tensors, how));
      return mean(operation.out, operation.reduce);
    }
    case OperationKind::reduce: {
      c10d::ReduceOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      how.rootRank = operation.root;
      const bool is_root = rank() == operation.root;
      if (!is_root) tensors[0] = tensors[0].clone();  // backends may use it as scratch memory
      wait(backend_->reduce(tensors, how));
      if (is_root) mean(operation.out, operation.reduce);
      return;
    }
    case OperationKind::reduce_scatter: {
      c10d::ReduceScatterOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      at::Tensor in = operation.in.view(-1), out = operation.out.view(-1);
      wait(backend_->_reduce_scatter_base(out, in, how));
      return mean(operation.out, operation.reduce);
    }
    case OperationKind::all_gather: {
      at::Tensor in = operation.in.view(-1), out = operation.out.view(-1);
      return wait(backend_->_allgather_base(out, in));
    }
    case OperationKind::broadcast: {
      c10d::BroadcastOptions how;
      how.rootRank = operation.root;
      return wait(backend_->broadcast(tensors, how));
    }
    case OperationKind::send: return wait(backend_->send(tensors, operation.root, 0), operation.root);
    case OperationKind::receive: return wait(backend_->recv(tensors, operation.root, 0), operation.root);
    case OperationKind::barrier:
    case OperationKind::subgroup: return wait(backend_->barrier());
    default: return run_uneven(operation);
  }
}

}  // namespace

std::unique_ptr<Collectives> make_plugged(c10::intrusive_ptr<c10d::Backend> backend, c10::DeviceType device, SplitBackend split) {
  return std::make_unique<Plugged>(std::move(backend), device, std::move(split));
}

}  // namespace muster::dist
