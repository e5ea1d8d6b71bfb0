#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/Functions.h>

#include "comm/samples.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// Values of all sizes, so that the order of a sum shows in its bits.
inline at::Tensor values(int rank, int64_t elements, at::ScalarType dtype) {
  if (!at::isFloatingType(dtype)) return sample(rank, elements, dtype);
  const auto numbers = at::arange(elements, at::kDouble) * (1.37 + rank);
  return (numbers.sin() * std::pow(7.0, rank % 4)).to(dtype);
}

/// The results of every operation, one after another.
inline std::vector<at::Tensor> results_of(const Communicator& comm, int64_t elements, at::ScalarType dtype) {
  const int world = comm.size(), rank = comm.rank(), root = world / 2;
  std::vector<at::Tensor> all;
  for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    if (op == ReduceOp::mean && !at::isFloatingType(dtype)) continue;
    at::Tensor tensor = values(rank, elements, dtype);
    comm.all_reduce(tensor, op);
    at::Tensor started = values(rank, elements, dtype);
    comm.start_all_reduce(started, op).wait();
    at::Tensor in = values(rank, elements * world, dtype), out = at::empty({elements}, dtype);
    comm.reduce_scatter(out, in, op);
    comm.reduce(in, root, op);
    comm.start_reduce_scatter(in.narrow(0, rank * elements, elements), in, op).wait();
    all.insert(all.end(), {tensor, started, out, in});
  }
  at::Tensor own = values(rank, elements, dtype), moved = own.clone();
  all.push_back(comm.all_gather(own));
  comm.broadcast(moved, root);
  all.push_back(moved);
  const auto append = [&](const std::vector<at::Tensor>& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(comm.all_gatherv(values(rank, elements + rank, dtype)));
  std::vector<at::Tensor> parts;
  for (int to = 0; to < world; ++to) parts.push_back(values(rank, elements + to, dtype));
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
