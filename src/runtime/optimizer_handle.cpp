#include <optional>
#include <utility>
#include <vector>

#include "memory_owners.h"
#include "muster/base/error.h"
#include "prepared_optimizer.h"

namespace muster {

Optimizer::Optimizer(std::shared_ptr<runtime::PreparedOptimizer> prepared) : prepared_(std::move(prepared)) {}
at::Tensor Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  const auto add_error_context = [&](c10::Error& error) { prepared_->add_error_context(error); };
  return runtime::with_error_context(add_error_context, [&] { return prepared_->step(closure); });
}
void Optimizer::zero_grad(bool set_to_none) { prepared_->zero_grad(set_to_none); }
void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) { prepared_->add_param_group(group); }
bool Optimizer::step_was_skipped() const { return prepared_->step_was_skipped(); }

std::optional<GradScalerState> Optimizer::scaler_state() const { return prepared_->scaler_state(); }

void Optimizer::load_scaler_state(const GradScalerState& state) {
  if (!prepared_->scaler_state())
    throw ConfigError(
        "MU147",
        "the state of a loss scale was given to an optimizer without one: only '16-mixed', and a precision policy of "
        "the program's own that wants it, scale losses");
  prepared_->load_scaler_state(state);
}

std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() {
  prepared_->step_deferred_schedulers();
  return prepared_->inner().param_groups();
}
torch::optim::Optimizer* Optimizer::operator->() const { return &inner(); }
torch::optim::Optimizer& Optimizer::inner() const {
  prepared_->wait_for_step();
  return prepared_->inner();
}

}  // namespace muster
