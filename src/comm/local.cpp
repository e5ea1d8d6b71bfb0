#include "comm/collectives.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

/// One rank acts for all: every other rank is assumed to hold its values. A group of one is the case of size 1.
class Local final : public Collectives {
 public:
  Local(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  bool takes_device_tensors() const noexcept override { return true; }
  void run(Operation& operation, const std::string&, TimePoint) override {
    auto& results = operation.results;
    const bool is_root = rank_ == operation.root;
    switch (operation.kind) {
      case OperationKind::all_reduce: return reduce(operation.out, operation.reduce);
      case OperationKind::reduce:
        if (is_root) reduce(operation.out, operation.reduce);
        return;
      case OperationKind::all_gather:
        if (size_ == 1 && operation.out.const_data_ptr() == operation.in.const_data_ptr()) return;
        operation.out.view({size_, operation.in.numel()})
            .copy_(operation.in.reshape({1, operation.in.numel()}).clone());
        return;
      case OperationKind::reduce_scatter:
        operation.out.view(-1).copy_(operation.in.view({size_, operation.out.numel()})[rank_]);
        return reduce(operation.out, operation.reduce);
      case OperationKind::all_gatherv:
      case OperationKind::all_gather_bytes:
      case OperationKind::gather:
      case OperationKind::gather_bytes:
        results.assign(size_, at::Tensor());
        if (operation.root >= 0 && !is_root) return;
        for (auto& result : results) result = operation.in.clone();
        return;
      case OperationKind::broadcast_bytes:
        results.assign(size_, at::Tensor());
        results[operation.root] = operation.in.defined() ? operation.in.clone() : at::Tensor();
        return;
      case OperationKind::all_to_all:
        results.clear();
        for (int r = 0; r < size_; ++r) results.push_back(operation.parts[rank_].clone());
        return;
      case OperationKind::scatter:
        if (!is_root)
          throw CommError("MU061", formatted("the fake backend cannot know what rank {} would scatter to rank {}",
                                             operation.root, rank_));
        results.assign(1, operation.parts[rank_].clone());
        return;
      case OperationKind::broadcast:
      case OperationKind::barrier:
      case OperationKind::subgroup:
      case OperationKind::allocate_shared_buffer:
      case OperationKind::send:
      case OperationKind::recv: return;
    }
  }
  void abort(const std::string&) noexcept override {}

  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string&) override {
    auto new_rank = rank_index(ranks, rank_);
    return std::make_unique<Local>(new_rank, static_cast<int>(ranks.size()));
  }

 private:
  void reduce(const at::Tensor& out, ReduceOp op) const {
    if (size_ == 1 || out.scalar_type() == at::kBool) return;
    if (op == ReduceOp::sum) out.mul_(size_);
    if (op == ReduceOp::product) out.pow_(size_);
  }

  int rank_;
  int size_;
};

}  // namespace

std::unique_ptr<Collectives> make_local(int rank, int size) { return std::make_unique<Local>(rank, size); }

}  // namespace muster::comm
