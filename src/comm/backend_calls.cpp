#include "comm/backend_calls.h"

#include <exception>

namespace muster::comm {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return c10d::ReduceOp::MIN;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    case ReduceOp::product: return c10d::ReduceOp::PRODUCT;
    case ReduceOp::sum:
    case ReduceOp::mean: break;  // started as a sum, which finish_mean() divides: not every backend has a mean
  }
  return c10d::ReduceOp::SUM;
}

c10::intrusive_ptr<c10d::Work> call_reduce(c10d::Backend& backend, const Operation& operation,
                                           std::vector<at::Tensor>& tensors) {
  c10d::ReduceOptions how;
  how.reduceOp = to_c10d(operation.reduce);
  how.rootRank = operation.root;
  // Backends may use the tensor as scratch memory on all ranks but the root.
  if (backend.getRank() != operation.root) tensors[0] = tensors[0].clone();
  return backend.reduce(tensors, how);
}

}  // namespace

bool has_backend_call(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::reduce_scatter:
    case OperationKind::all_gather:
    case OperationKind::broadcast:
    case OperationKind::send:
    case OperationKind::recv: return true;
    default: return false;
  }
}

c10::intrusive_ptr<c10d::Work> call_backend(c10d::Backend& backend, const Operation& operation,
                                            std::vector<at::Tensor>& kept) {
  kept.assign(1, operation.out.defined() ? operation.out : operation.in);
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      c10d::AllreduceOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      return backend.allreduce(kept, how);
    }
    case OperationKind::reduce: return call_reduce(backend, operation, kept);
    case OperationKind::reduce_scatter: {
      c10d::ReduceScatterOptions how;
      how.reduceOp = to_c10d(operation.reduce);
      at::Tensor in = operation.in.view(-1), out = operation.out.view(-1);
      // LibTorch 2.14 renamed this call and _allgather_base; either name reaches a backend that overrides one of the
      // two.
      return backend._reduce_scatter_base(out, in, how);
    }
    case OperationKind::all_gather: {
      at::Tensor in = operation.in.view(-1), out = operation.out.view(-1);
      return backend._allgather_base(out, in);
    }
    case OperationKind::broadcast: {
      c10d::BroadcastOptions how;
      how.rootRank = operation.root;
      return backend.broadcast(kept, how);
    }
    case OperationKind::send: return backend.send(kept, operation.root, 0);
    case OperationKind::recv: return backend.recv(kept, operation.root, 0);
    default: return nullptr;
  }
}

void abort_backend(c10d::Backend& backend) noexcept {
  try {
    backend.abort();
  } catch (const std::exception&) {}
}

void finish_mean(const Operation& operation, int rank, int size) {
  if (!reduces(operation.kind) || operation.reduce != ReduceOp::mean) return;
  if (operation.kind == OperationKind::reduce && rank != operation.root) return;
  at::Tensor(operation.out).div_(size);
}

}  // namespace muster::comm
