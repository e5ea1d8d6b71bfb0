#include "muster/parallel/local_sgd.h"

#include <algorithm>

#include <ATen/ops/cat.h>

#include "hook/below_autograd.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/communicator.h"
#include "muster/optim/flat_parameters.h"
#include "muster/parallel/managed_model.h"
#include "parallel/local.h"

namespace muster {

LocalSGD::LocalSGD(torch::nn::Module& module, parallel::ManagedModel& model, const comm::Communicator& group,
                   LocalSgdOptions options)
    : module_(module), model_(model), group_(std::make_unique<const comm::Communicator>(group)), options_(options),
      synced_before_(model.gradient_sync()) {
  if (options_.local_sgd_steps < 1)
    throw ConfigError("MU159",
                      formatted("local_sgd_steps is {}; parameters can be averaged after 1 optimizer step or more",
                                options_.local_sgd_steps));
  if (model.sharded())
    throw ConfigError("MU159",
                      "local SGD needs full parameters on every rank, and this model's are sharded; use strategy ddp");
  collect();
  if (options_.enabled) model_.set_gradient_sync(false);
}

LocalSGD::~LocalSGD() {
  if (options_.enabled) model_.set_gradient_sync(synced_before_);
}

/// Adds parameters that were unfrozen since the last average. Parameters that were trained before stay in the list.
void LocalSGD::collect() {
  for (const auto& [name, parameter] : parallel::distinct_parameters(module_)) {
    const auto known = std::any_of(parameters_.begin(), parameters_.end(),
                                   [&, &own = parameter](const at::Tensor& one) { return one.is_same(own); });
    if (known || !parameter.requires_grad()) continue;
    const auto* piece = model_.find(parameter);
    values_.push_back(piece ? piece->value : parameter.detach().view(-1));
    parameters_.push_back(parameter);
  }
}

void LocalSGD::step() {
  if (options_.enabled && ++pending_ == options_.local_sgd_steps) average();
}

void LocalSGD::average() {
  collect();
  optim::write_parameters(&model_, parameters_, [this] { average_values(); });
  model_.broadcast_buffers();
  pending_ = 0;
}

void LocalSGD::finish() {
  if (pending_ > 0) average();
}

/// Sends one message per dtype and device.
void LocalSGD::average_values() {
  const hook::BelowAutograd below;
  auto rest = values_;
  while (!rest.empty()) {
    const auto first = rest.front();
    const auto others = std::stable_partition(rest.begin(), rest.end(), [&](const at::Tensor& value) {
      return value.scalar_type() == first.scalar_type() && value.device() == first.device();
    });
    const auto together = at::cat(std::vector<at::Tensor>(rest.begin(), others));
    group_->internal("averaging weights").all_reduce(together, comm::ReduceOp::mean);
    int64_t at = 0;
    for (auto it = rest.begin(); it != others; ++it) {
      it->copy_(together.narrow(0, at, it->numel()));
      at += it->numel();
    }
    rest.erase(rest.begin(), others);
  }
}

}  // namespace muster
