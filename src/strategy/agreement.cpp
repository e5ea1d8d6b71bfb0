#include "muster/strategy/detail/agreement.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/tensor.h>

namespace muster::strategy {

std::size_t Agreement::ask(double mine, comm::ReduceOp op) {
  mine_.push_back(mine);
  ops_.push_back(op);
  return mine_.size() - 1;
}

void Agreement::run() {
  answers_ = mine_;
  if (group_.size() == 1) return;
  const auto all = group_.all_gather(at::tensor(mine_, at::kDouble));
  const auto count = mine_.size();
  const auto* values = all.const_data_ptr<double>();
  for (std::size_t i = 0; i < count; ++i) {
    double result = values[i];
    for (int rank = 1; rank < group_.size(); ++rank) {
      const double other = values[static_cast<std::size_t>(rank) * count + i];
      if (ops_[i] == comm::ReduceOp::max) result = std::max(result, other);
      else if (ops_[i] == comm::ReduceOp::min) result = std::min(result, other);
      else result += other;
    }
    answers_[i] = result;
  }
}

bool any_rank(const comm::Communicator& group, std::string label, bool mine) {
  Agreement agreement(group, std::move(label));
  agreement.ask(mine, comm::ReduceOp::max);
  agreement.run();
  return agreement.answer(0) > 0;
}

}  // namespace muster::strategy
