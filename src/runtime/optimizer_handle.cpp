#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory_owners.h"
#include "model_state.h"
#include "muster/base/error.h"
#include "muster/optim/optimizer_state.h"
#include "param_groups.h"
#include "prepared_optimizer.h"

namespace muster::runtime {

State PreparedOptimizer::state_dict(const std::string& path, std::vector<TensorShard>& shards) {
  wait_for_step();
  const auto parts = shards_of(context_.registry->models());
  State state =
      State::Map{{"inner", shard_optimizer_state(muster::state_dict(*inner_), parameters(), parts, path, shards)}};
  if (!scaler_) return state;
  const auto now = scaler_->state_dict();
  state.set("scaler", State::Map{{"scale", now.scale},
                                 {"growth_tracker", now.growth_tracker},
                                 {"gradient_scale", gradient_scale_.value()},
                                 {"loss_scale", loss_scale_.value()},
                                 {"skipped", skipped_},
                                 {"unscaled", unscaled_}});
  return state;
}

std::function<void()> PreparedOptimizer::prepare_load(const State& state, const TensorReader& reader) {
  bind_models();
  wait_for_step();
  require_saved_groups(state.at("inner"), *inner_, *context_.registry);
  const auto parts = shards_of(context_.registry->models());
  // A step updates the shard; with another compute dtype the parameter itself is only used.
  const auto updated_dtype = [&](const at::Tensor& parameter) {
    const auto part = parts.find(parameter.unsafeGetTensorImpl());
    return (part == parts.end() ? parameter : part->second.local).scalar_type();
  };
  const auto load_inner = muster::prepare_load(
      *inner_, joined_optimizer_state(state.at("inner"), parameters(), parts, reader), updated_dtype);
  const auto* saved = state.find("scaler");
  if ((saved != nullptr) != scaler_.has_value())
    throw CheckpointError("MU240", std::string("the checkpoint was saved ") + (saved ? "with" : "without") +
                                       " loss scaling, as of '16-mixed', and this program runs " +
                                       (saved ? "without" : "with") + " it: choose the precision it was saved with");
  const auto load = [this, load_inner] {
    load_inner();
    fused_.note_load();
    skip_next_ = false;
    flag_.forget();
  };
  if (!saved) return load;
  precision::GradScaler check(*context_.scaling);
  const GradScalerState scaler{.growth_tracker = saved->at("growth_tracker").integer(),
                               .scale = saved->at("scale").number()};
  check.load_state_dict(scaler);
  return [this, load, scaler, gradient_scale = saved->at("gradient_scale").number(),
          loss_scale = saved->at("loss_scale").number(), skipped = saved->at("skipped").boolean(),
          unscaled = saved->at("unscaled").boolean()] {
    load();
    scaler_->load_state_dict(scaler);
    device_scaler_.reset();
    gradient_scale_ = {gradient_scale};
    loss_scale_ = {loss_scale};
    unscaled_ = unscaled;
    skipped_ = skipped;
  };
}

}  // namespace muster::runtime

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
