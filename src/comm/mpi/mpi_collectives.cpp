#include "comm/mpi/mpi_collectives.h"

#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>

#include "comm/mpi/library.h"
#include "comm/pairwise.h"

namespace muster::comm {
namespace {

using mpi::Collective;
using Kind = TransportFailure::Kind;

/// Not of small integers: Open MPI's kernels for AVX saturate them.
std::optional<Collective::Type> summed_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return Collective::Type::float32;
    case at::kDouble: return Collective::Type::float64;
    case at::kInt: return Collective::Type::int32;
    case at::kLong: return Collective::Type::int64;
    default: return std::nullopt;
  }
}

bool is_sum(const Operation& operation) {
  return (operation.reduce == ReduceOp::sum || operation.reduce == ReduceOp::mean) &&
         summed_type(operation.out.scalar_type()).has_value();
}

/// Whether MPI takes the operation; all ranks that agree in it decide alike.
bool runs_in_mpi(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::all_gather:
    case OperationKind::broadcast: break;
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
      if (!is_sum(operation)) return false;
      break;
    default: return false;
  }
  const auto& part = operation.kind == OperationKind::all_gather ? operation.in : operation.out;
  // MPI counts in int.
  return part.nbytes() > kInlineBytes && part.nbytes() <= std::size_t{std::numeric_limits<int>::max()};
}

bool overlaps(const at::Tensor& a, const at::Tensor& b) {
  const auto *a_begin = static_cast<const std::byte*>(a.const_data_ptr()),
             *b_begin = static_cast<const std::byte*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

class MpiCollectives final : public Pairwise {
 public:
  MpiCollectives(std::unique_ptr<TransportOverMpi> transport, std::chrono::milliseconds connect_timeout)
      : Pairwise(std::move(transport)), transport_(static_cast<TransportOverMpi&>(this->transport())),
        connect_timeout_(connect_timeout) {}

  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override {
    // MPI makes a communicator of some ranks only without a time-out.
    if (static_cast<int>(ranks.size()) != size()) return Pairwise::split(ranks, name);
    const auto deadline = TimePoint::clock::now() + connect_timeout_;
    const auto comm = mpi::Library::of_process().duplicate(transport_.duplicated_comm()->communicator(), deadline);
    return make_mpi_collectives(make_mpi_transport(comm, name, connect_timeout_), connect_timeout_);
  }

 protected:
  void dispatch(const Call& call) override {
    if (!runs_in_mpi(call.operation)) return Pairwise::dispatch(call);
    exchange_headers(call);
    switch (call.operation.kind) {
      case OperationKind::all_gather: return all_gather(call);
      case OperationKind::broadcast: return broadcast(call);
      case OperationKind::reduce_scatter: return reduce_scatter(call);
      default: return all_reduce(call);
    }
  }

 private:
  void all_gather(const Call& call) {
    const auto &in = call.operation.in, &out = call.operation.out;
    auto* own = static_cast<std::byte*>(out.mutable_data_ptr()) + in.nbytes() * rank();
    if (own != in.const_data_ptr()) std::memmove(own, in.const_data_ptr(), in.nbytes());
    run_by_mpi(call, {.kind = Collective::Kind::all_gather, .count = static_cast<int>(in.nbytes())}, out);
  }

  void broadcast(const Call& call) {
    const auto& out = call.operation.out;
    run_by_mpi(
        call,
        {.kind = Collective::Kind::broadcast, .count = static_cast<int>(out.nbytes()), .root = call.operation.root},
        out);
  }

  void all_reduce(const Call& call) {
    const auto& out = call.operation.out;
    run_by_mpi(call, sum(Collective::Kind::all_reduce, out), out);
    finish(call, out);
  }

  void reduce_scatter(const Call& call) {
    const auto &in = call.operation.in, &out = call.operation.out;
    const at::Tensor result = overlaps(in, out) ? at::empty_like(out) : out;
    auto collective = sum(Collective::Kind::reduce_scatter, out);
    collective.in = in.const_data_ptr();
    run_by_mpi(call, collective, result);
    finish(call, result);
    if (!result.is_same(out)) at::Tensor(out).copy_(result);
  }

  static Collective sum(Collective::Kind kind, const at::Tensor& of) {
    return {.kind = kind, .type = *summed_type(of.scalar_type()), .count = static_cast<int>(of.numel())};
  }

  void finish(const Call& call, const at::Tensor& result) const {
    if (call.operation.reduce == ReduceOp::mean) at::Tensor(result).div_(size());
  }

  void run_by_mpi(const Call& call, Collective collective, const at::Tensor& out);

  TransportOverMpi& transport_;
  const std::chrono::milliseconds connect_timeout_;
};

void MpiCollectives::run_by_mpi(const Call& call, Collective collective, const at::Tensor& out) {
  auto& comm = *transport_.duplicated_comm();
  mpi::Handle request = 0;
  collective.out = out.mutable_data_ptr();
  const auto check = [&](int code) {
    if (code != 0) throw TransportFailure{Kind::closed, -1, comm.calls().error_string(code)};
  };
  check(comm.calls().start(collective, comm.communicator(), request));
  try {
    transport_.wait_for_all(
        [&] {
          bool done = false;
          std::size_t unused = 0;
          check(comm.calls().test(request, done, unused));
          return done;
        },
        call.deadline);
  } catch (...) {
    // It cannot be taken back: MPI may read and write the tensors until the process ends.
    comm.keep(std::make_shared<const std::vector<at::Tensor>>(std::vector{out, call.operation.in}));
    throw;
  }
}

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives(std::unique_ptr<TransportOverMpi> transport,
                                                  std::chrono::milliseconds connect_timeout) {
  return std::make_unique<MpiCollectives>(std::move(transport), connect_timeout);
}

}  // namespace muster::comm
