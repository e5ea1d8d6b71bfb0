#include "comm/backend.h"

#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// A c10d::Work for a started operation.
class BackendWork final : public c10d::Work {
 public:
  BackendWork(int rank, c10d::OpType type, comm::Work work, Tensors results)
      : Work(rank, type), work_(std::move(work)), results_(std::move(results)) {}

  bool isCompleted() override { return work_.is_completed(); }
  bool isSuccess() const override { return work_.is_completed(); }
  std::vector<at::Tensor> result() override { return results_; }

  bool wait(std::chrono::milliseconds) override {
    work_.wait();
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    try {
      work_.wait();
      future->markCompleted(c10::IValue(results_));
    } catch (...) {
      future->setError(std::current_exception());
    }
    return future;
  }

 private:
  comm::Work work_;
  Tensors results_;
};

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ReduceOp::mean;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    default: throw ConfigError("MU055", "the backend reduces by SUM, AVG, MIN, MAX and PRODUCT only");
  }
}

at::Tensor& only(Tensors& tensors) {
  if (tensors.size() != 1)
    throw ConfigError("MU060", formatted("the backend takes one tensor per call, not {}", tensors.size()));
  return tensors[0];
}

class CommunicatorBackend final : public c10d::Backend {
 public:
  explicit CommunicatorBackend(const Communicator& communicator)
      : Backend(communicator.rank(), communicator.size()), communicator_(communicator) {}

  const std::string getBackendName() const override { return "muster-" + std::string(communicator_.backend()); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto& tensor = only(tensors);
    return started(c10d::OpType::ALLREDUCE, communicator_.start_all_reduce(tensor, from_c10d(options.reduceOp)),
                   {tensor});
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto& tensor = only(tensors);
    return started(c10d::OpType::BROADCAST, communicator_.start_broadcast(tensor, static_cast<int>(options.rootRank)),
                   {tensor});
  }

  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    return started(c10d::OpType::_ALLGATHER_BASE, communicator_.start_all_gather_into(out, in), {out});
  }

  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override {
    auto work = communicator_.start_reduce_scatter(out, in, from_c10d(options.reduceOp));
    return started(c10d::OpType::_REDUCE_SCATTER_BASE, std::move(work), {out});
  }

  WorkPtr allgather(std::vector<Tensors>& outs, Tensors& ins, const c10d::AllgatherOptions&) override {
    if (outs.size() != 1 || static_cast<int>(outs[0].size()) != getSize())
      throw ConfigError("MU060", "allgather takes one list of one tensor per rank");
    copy(communicator_.all_gatherv(only(ins)), outs[0]);
    return started(c10d::OpType::ALLGATHER, {}, outs[0]);
  }

  WorkPtr alltoall(Tensors& outs, Tensors& ins, const c10d::AllToAllOptions&) override {
    copy(communicator_.all_to_all(ins), outs);
    return started(c10d::OpType::ALLTOALL, {}, outs);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto& tensor = only(tensors);
    communicator_.reduce(tensor, static_cast<int>(options.rootRank), from_c10d(options.reduceOp));
    return started(c10d::OpType::REDUCE, {}, {tensor});
  }

  WorkPtr gather(std::vector<Tensors>& outs, Tensors& ins, const c10d::GatherOptions& options) override {
    auto gathered = communicator_.gather(only(ins), static_cast<int>(options.rootRank));
    if (getRank() != options.rootRank) return started(c10d::OpType::GATHER, {}, {});
    if (outs.size() != 1) throw ConfigError("MU060", "gather takes one list of tensors on its root");
    copy(gathered, outs[0]);
    return started(c10d::OpType::GATHER, {}, outs[0]);
  }

  WorkPtr scatter(Tensors& outs, std::vector<Tensors>& ins, const c10d::ScatterOptions& options) override {
    auto part = communicator_.scatter(ins.empty() ? Tensors() : ins[0], static_cast<int>(options.rootRank));
    only(outs).copy_(part);
    return started(c10d::OpType::SCATTER, {}, outs);
  }

  WorkPtr send(Tensors& tensors, int to, int) override {
    communicator_.send(only(tensors), to);
    return started(c10d::OpType::SEND, {}, tensors);
  }

  WorkPtr recv(Tensors& tensors, int from, int) override {
    communicator_.recv(only(tensors), from);
    return started(c10d::OpType::RECV, {}, tensors);
  }

  WorkPtr barrier(const c10d::BarrierOptions&) override {
    communicator_.barrier();
    return started(c10d::OpType::BARRIER, {}, {});
  }

  void abort() override { communicator_.abort("its c10d backend was aborted"); }

 private:
  WorkPtr started(c10d::OpType type, comm::Work work, Tensors results) const {
    return c10::make_intrusive<BackendWork>(getRank(), type, std::move(work), std::move(results));
  }

  static void copy(const Tensors& from, Tensors& to) {
    if (from.size() != to.size())
      throw ConfigError("MU060", formatted("{} tensors for {} results", to.size(), from.size()));
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }

  const Communicator communicator_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(const Communicator& communicator) {
  return c10::make_intrusive<CommunicatorBackend>(communicator);
}

}  // namespace muster::comm
