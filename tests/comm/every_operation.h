#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/Functions.h>

#include "comm/samples.h"
#include "comm/shared_tensor.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// Values of all sizes, so that the order of a sum shows in its bits, and zeros of both signs.
inline at::Tensor values(int rank, int64_t elements, at::ScalarType dtype) {
  if (!at::isFloatingType(dtype)) return sample(rank, elements, dtype);
  // Not LibTorch's sine: MKL's may have other last bits in another process.
  const at::Tensor numbers = at::empty({elements}, at::kDouble);
  for (int64_t i = 0; i < elements; ++i)
    numbers.mutable_data_ptr<double>()[i] = std::sin(static_cast<double>(i) * (1.37 + rank)) * std::pow(7.0, rank % 4);
  numbers.slice(0, 2, elements, 5).zero_();
  numbers.slice(0, rank % 2 ? 2 : 7, elements, 10).neg_();
  return numbers.to(dtype);
}

/// The results of every reduction, one after another, of `source`; `result` is memory to which all ranks write.
inline std::vector<at::Tensor> reductions_of(const Communicator& comm, const at::Tensor& source,
                                             const at::Tensor& result) {
  const int world = comm.size(), rank = comm.rank(), root = world / 2;
  const int64_t elements = result.numel();
  const auto first = [&](int64_t count) { return source.narrow(0, 0, count).clone(); };
  std::vector<at::Tensor> all;
  for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    if (op == ReduceOp::mean && !source.is_floating_point()) continue;
    at::Tensor tensor = first(elements);
    comm.all_reduce(tensor, op);
    at::Tensor started = first(elements);
    comm.start_all_reduce(started, op).wait();
    at::Tensor in = first(elements * world), out = at::empty_like(result);
    comm.reduce_scatter(out, in, op);
    comm.reduce(in, root, op);
    comm.start_reduce_scatter(in.narrow(0, rank * elements, elements), in, op).wait();
    comm.start_all_reduce(result.copy_(first(elements)), op).wait();
    all.insert(all.end(), {tensor, started, out, in, result.clone()});
  }
  return all;
}

/// The results of every operation, one after another, on tensors of that device.
inline std::vector<at::Tensor> results_of(const Communicator& comm, int64_t elements, at::ScalarType dtype,
                                          at::Device device = at::kCPU) {
  const int world = comm.size(), rank = comm.rank(), root = world / 2;
  const auto options = at::TensorOptions(dtype).device(device);
  const at::Tensor source = values(rank, (elements + 1) * world, dtype).to(device);
  const auto first = [&](int64_t count) { return source.narrow(0, 0, count).clone(); };
  const auto second_half = [&](PeerAccess access) {
    return shared_zeros(comm, 2 * elements, options, access).narrow(0, elements, elements);
  };
  const at::Tensor living = second_half(PeerAccess::read), result = second_half(PeerAccess::write);
  std::vector<at::Tensor> all = reductions_of(comm, source, result);
  at::Tensor own = first(elements), moved = own.clone();
  all.push_back(comm.all_gather(own));
  comm.broadcast(moved, root);
  all.push_back(moved);
  for (const at::Tensor& memory : {living, result, rank == root ? at::empty_like(own) : result}) {
    comm.all_reduce(memory.copy_(own));
    all.push_back(memory.clone());
  }
  const at::Tensor row = shared_zeros(comm, elements * world, options);
  const at::Tensor piece = row.narrow(0, elements * rank, elements);
  for (const at::Tensor& in : {piece, living, rank == root ? own : living}) {
    const at::Tensor into = in.is_same(piece) ? row : at::empty_like(row);
    in.copy_(own);
    comm.start_all_gather_into(into, in).wait();
    all.push_back(into.clone());
    comm.all_gather_into(into, in.copy_(own));
    all.push_back(into.clone());
  }
  for (const at::Tensor& out : {piece, at::empty({elements}, options)}) {
    row.copy_(first(elements * world));
    comm.start_reduce_scatter(out, row).wait();
    all.push_back(out.clone());
  }
  const auto append = [&](const std::vector<at::Tensor>& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(comm.all_gatherv(first(elements + rank)));
  std::vector<at::Tensor> parts;
  for (int to = 0; to < world; ++to) parts.push_back(first(elements + to));
  append(comm.all_to_all(parts));
  append(comm.gather(own, root));
  all.push_back(comm.scatter(parts, root));
  comm.barrier();
  at::Tensor passed = own.clone();
  if (rank > 0) comm.recv(passed, rank - 1);
  if (rank + 1 < world) comm.send(passed, rank + 1);
  all.push_back(passed);
  return all;
}

}  // namespace muster::comm
