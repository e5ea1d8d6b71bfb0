#include "prepared_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/lbfgs.h>
#include <torch/types.h>

#include "base/log.h"
#include "comm/agreement.h"
#include "gradients.h"
#include "memory_owners.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/optimizer_state.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "param_groups.h"
#include "state_digest.h"

namespace muster::runtime {

PreparedOptimizer::PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, OptimizerContext context)
    : inner_(std::move(inner)), context_(std::move(context)), fused_(*inner_),
      models_(context_.registry, context_.group.size()) {
  if (context_.scaling) scaling_.emplace(*context_.scaling);
  if (fused_.repeated() > 0 && context_.group.rank() == 0)
    log::warning("a prepared optimizer was given ", fused_.repeated(),
                 " tensor(s) again that its groups list before, as parameters() "
                 "does with tied weights; each is stepped and clipped once");
}

void PreparedOptimizer::bind(bool require_all) {
  if (bound_generation_ == context_.registry->generation()) return;
  size_t index = 0;
  bool found = false;
  for (const auto& parameter : parameters()) found = bind_parameter(parameter, index++, require_all) || found;
  if (found) fused_.require_full_parameters();
  if (require_all) bound_generation_ = context_.registry->generation();
}

/// Returns whether the parameter belongs to a model that this optimizer did not know yet.
bool PreparedOptimizer::bind_parameter(const at::Tensor& parameter, size_t index, bool require_all) {
  if (models_.hold(parameter)) return false;
  if (const auto holder = models_.add_holder_of(parameter)) {
    auto& model = *holder->managed;
    wait_for_step();
    // The optimizer may have had state before its model was moved to the device, or sharded.
    for (const auto& known : parameters())
      if (model.expects(known)) move_state(*inner_, known);
    for (const auto& shard : model.shards())
      change_state(*inner_, shard.parameter, [&](const at::Tensor& whole) { return padded_shard(whole, shard); });
    fused_.add_flat_parameters(model);
    return true;
  }
  if (require_all && parameter.requires_grad() && context_.group.size() > 1) {
    throw ConfigError("MU178", "parameter " + std::to_string(index) +
                                   " of a prepared optimizer belongs to no prepared module, so "
                                   "its gradient would differ from rank to rank; prepare the module that owns it");
  }
  return false;
}

std::vector<at::Tensor> PreparedOptimizer::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : inner_->param_groups()) all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

void PreparedOptimizer::before_backward() {
  bind(/*require_all=*/false);
  fused_.refuse_direct_step();
  gradients_used_ = false;
}

void PreparedOptimizer::note_loaded_gradients(bool reduced) {
  gradients_used_ = false;
  models_.note_loaded_gradients(reduced);
}

void PreparedOptimizer::join_other_ranks(const std::vector<at::Tensor>* of) {
  if (context_.group.size() == 1 || !context_.accumulation->sync()) return;
  bind(/*require_all=*/false);
  models_.join_other_ranks(of, context_.before_reduction);
}

void PreparedOptimizer::for_each_other(const std::function<void(optim::FusedStep&)>& f) const {
  for (const auto& entry : *context_.optimizers)
    if (const auto other = entry.lock(); other && other.get() != this) f(other->fused_);
}

bool PreparedOptimizer::evaluates_closure() const {
  return !fused_.fused() && (!scaling_ || dynamic_cast<const torch::optim::LBFGS*>(inner_.get()));
}

at::Tensor PreparedOptimizer::update(const torch::optim::Optimizer::LossClosure& closure, const at::Tensor& flag) {
  const auto after =
      c10::make_scope_exit([this] { for_each_other([](optim::FusedStep& other) { other.after_another_step(); }); });
  for_each_other([](optim::FusedStep& other) { other.before_another_step(); });
  if (decision_.pending()) {
    decision_.note_update();
    fused_.step_unless(flag);
    return {};
  }
  if (!closure || context_.group.size() == 1) return fused_.step(closure);
  return fused_.step([&] {
    models_.note_reductions();
    auto loss = closure();
    join_other_ranks();
    require_same_device_operations();
    auto mean = loss.defined() ? loss.detach().clone() : at::zeros({}, device_of_parameters().value_or(at::kCPU));
    context_.group.internal("the mean loss of a closure").all_reduce(mean, comm::ReduceOp::mean);
    return mean;
  });
}

at::Tensor PreparedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (!context_.accumulation->sync()) return {};  // within a window: neither made nor skipped
  if (closure && context_.accumulation->joined())
    throw UsageError("MU585",
                     "an optimizer's step() was given a closure inside join_uneven_inputs, where ranks without a batch "
                     "cannot call it: call backward, and then step() without a closure");
  wait_for_step();  // of the step before: it may step schedulers
  TraceScope span(*context_.trace, "optimizer step");
  context_.accumulation->note_step();
  bind(/*require_all=*/true);
  if (!closure) {
    join_other_ranks();
    require_same_device_operations();
  }
  if (closure && scaling_)
    throw UsageError(
        "MU146",
        "an optimizer that calls back for gradients cannot work with loss scaling, as of '16-mixed', which may skip "
        "a step: choose 'bf16-mixed', or an optimizer without a closure");

  announce("step", [&] { return State::Map{{"groups", group_options(*inner_)}}; });
  const auto [loss, made] = use_gradients(closure);
  if (made && context_.after_step) {
    Optimizer handle(shared_from_this());
    context_.after_step(handle);
  }
  return loss;
}

std::pair<at::Tensor, bool> PreparedOptimizer::use_gradients(const torch::optim::Optimizer::LossClosure& closure) {
  models_.note_orders();
  // The step is skipped if a loss was scaled and a gradient is not finite, or if clipping has asked for it.
  // Gradients that are reduced and not sharded are equal on all ranks, so no message is needed for them.
  const auto ranks_may_differ = [&] { return steps_locally() || ranks_have_shards(); };
  if (scaling_) {
    if (steps_locally()) loss_scale();  // on a rank without a loss, too, the device keeps the scale
    if (scaling_->unscaled() && !scaling_->checked()) scaling_->forget();  // a second step with these gradients
    unscale();
  }
  const bool device_scales = scaling_ && scaling_->on_device();
  at::Tensor found_inf, scaler_state;
  if (device_scales) {
    found_inf = scaling_->device_found_inf();
    if (ranks_may_differ())
      context_.group.internal("overflows of gradients").all_reduce(found_inf, comm::ReduceOp::max);
    scaler_state = scaling_->update_on_device();
  }
  const auto flag = decision_.send(found_inf, scaler_state);  // defined: a device decides, and the host need not wait
  bool skipped = false;
  if (scaling_ && !device_scales) {
    skipped = scaling_->found_inf();
    if (ranks_may_differ()) skipped = comm::any_rank(context_.group, "overflows of gradients", skipped);
    scaling_->update(skipped);
  }
  skipped = decision_.take_skip_next() || skipped;
  // The host waits after all for an update that it makes itself, or that callbacks ask about.
  if (flag.defined() && (closure || skipped || context_.needs_found_inf_at_once || !fused_.takes_found_inf())) {
    wait_for_step();
    skipped = decision_.skipped() || skipped;
  }
  if (!decision_.pending()) decision_.decide(skipped);

  at::Tensor loss;
  if (skipped) fused_.note_load();  // the program may edit parameters after any step, also after one that was skipped
  else loss = update(closure, flag);
  models_.note_reductions();
  gradients_used_ = true;
  context_.registry->note_step();
  return {loss, !skipped};
}

void PreparedOptimizer::follow_step(const State& group_options) {
  wait_for_step();
  set_group_options(*inner_, group_options);
  use_gradients({});
}

void PreparedOptimizer::zero_grad(bool set_to_none) {
  if (!context_.accumulation->sync() && !context_.accumulation->begins()) return;
  bind(/*require_all=*/true);
  announce("zero_grad", [&] { return State::Map{{"set_to_none", set_to_none}}; });
  clear_gradients(set_to_none);
}

void PreparedOptimizer::announce(const char* what, const std::function<State::Map()>& arguments) const {
  context_.joined->announce(what, [&] {
    const auto& all = *context_.optimizers;
    const auto self = std::ranges::find_if(all, [&](const auto& entry) { return entry.lock().get() == this; });
    auto named = arguments();
    named.emplace_back("optimizer", static_cast<int64_t>(self - all.begin()));
    return named;
  });
}

void PreparedOptimizer::clear_gradients(bool set_to_none) {
  fused_.zero_grad(set_to_none);
  models_.note_reductions();
  gradients_used_ = false;
  const auto bad_norm = decision_.drop();
  if (scaling_) scaling_->clear_gradients();
  if (bad_norm) refuse_norm(bad_norm->first, bad_norm->second, "this step, which zero_grad() gives up,");
}

void PreparedOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  wait_for_step();
  require_addable(*inner_, group, *context_.registry);
  auto description = describe_parameters(*context_.registry, group.params());
  if (group.has_options()) description += formatted(" at a learning rate of {}", group.options().get_lr());
  const auto parameters = all_parameters(*context_.registry, group.params());
  inner_->add_param_group(group);
  try {
    const auto options = digest(muster::state_dict(*inner_).at("param_groups").list().back());
    require_equal_groups(context_.group, parameters + std::to_string(options), description);
  } catch (...) {
    inner_->param_groups().pop_back();
    throw;
  }
  bound_generation_ = -1;
  bind(/*require_all=*/false);
}

// What step() decides by: loss scales, norms that are not finite, and ranks that disagree.

/// The device of all parameters; nullopt for the CPU, and for several devices.
std::optional<at::Device> PreparedOptimizer::device_of_parameters() const {
  std::optional<at::Device> device;
  for (const auto& group : inner_->param_groups())
    for (const auto& parameter : group.params()) {
      if (parameter.is_cpu() || (device && *device != parameter.device())) return std::nullopt;
      device = parameter.device();
    }
  return device;
}

std::optional<LossScale> PreparedOptimizer::loss_scale() {
  if (!scaling_) return std::nullopt;
  const auto device = device_of_parameters();
  if (scaling_->leaves_device(device)) wait_for_step();
  return scaling_->scale_on(device);
}

bool PreparedOptimizer::has_gradients() const {
  bool found = false;
  for_each_gradient(*context_.registry, parameters(), [&](const at::Tensor&) { found = true; });
  return found;
}

void PreparedOptimizer::rescale_gradients(const LossScale& scale) {
  if (!scaling_) return;
  if (scaling_->checked() && !has_gradients()) scaling_->forget();  // cleared by the module, or not loaded
  const auto& now = scaling_->gradient_scale();
  if (const bool on_device = scale.on_device.defined(); !(now == scale) && (!on_device || has_gradients()))
    scale_gradients(*context_.registry, parameters(), scale.value() / now.value());
  scaling_->note_loss(scale);
}

bool PreparedOptimizer::ranks_have_shards() const {
  return context_.group.size() > 1 && any_sharded(*context_.registry, parameters());
}

/// Whether gradients are not reduced over the ranks.
bool PreparedOptimizer::gradients_are_local() const {
  return context_.group.size() > 1 && (models_.any_local() || !context_.accumulation->sync());
}

/// Whether ranks step with gradients that are not reduced, and can agree: inside join_uneven_inputs() some may have no
/// batch.
bool PreparedOptimizer::steps_locally() const {
  return context_.group.size() > 1 && models_.any_local() && !context_.accumulation->joined();
}

void PreparedOptimizer::unscale() {
  if (!scaling_) return;
  const bool local = gradients_are_local();
  if (checked_local_ && !local) scaling_->forget();  // they have been reduced since
  checked_local_ = local;
  if (scaling_->unscaled()) return;
  std::vector<at::Tensor> gradients;
  for_each_gradient(*context_.registry, parameters(),
                    [&](const at::Tensor& gradient) { gradients.push_back(gradient); });
  scaling_->unscale(gradients);
}

void PreparedOptimizer::note_norm(const GradNorm& norm) {
  // Gradients that are not checked since the last step are those that it has used.
  if (!scaling_ || !scaling_->checked() || gradients_are_local()) return;
  if (!scaling_->on_device()) scaling_->note_norm(static_cast<double>(norm));
  else if (norm.on_device().defined()) scaling_->note_norm(norm.on_device());
}

void PreparedOptimizer::wait_for_step() {
  if (!decision_.pending()) return;
  const auto known = decision_.wait();
  if (known.undone) fused_.undo_step_count();
  const auto calls = decision_.take_calls();
  if (known.scaler) scaling_->follow(*known.scaler);  // before calls, which may throw
  for (const auto& call : calls) call();
  if (known.bad_norm) refuse_norm(known.bad_norm->first, known.bad_norm->second, "the last step, which was left out,");
}

bool PreparedOptimizer::step_was_skipped() {
  wait_for_step();
  return decision_.skipped();
}

bool PreparedOptimizer::skip_next_if(bool bad) {
  if (steps_locally()) bad = comm::any_rank(context_.group, "norms of local gradients", bad);
  if (bad) decision_.skip_next();
  return bad;
}

void PreparedOptimizer::skip_if_not_finite(const at::Tensor& norm, double order, bool reports) {
  auto bad = norm.isfinite().logical_not().to(at::kFloat).view({1});
  if (steps_locally()) context_.group.internal("norms of local gradients").all_reduce(bad, comm::ReduceOp::max);
  decision_.skip_if(bad);
  if (reports) decision_.report(norm, order);
}

std::optional<GradScalerState> PreparedOptimizer::scaler_state() {
  wait_for_step();
  return scaling_ ? std::optional(scaling_->state()) : std::nullopt;
}

void PreparedOptimizer::load_scaler_state(const GradScalerState& state) {
  wait_for_step();
  scaling_->load_state(state);
}

void PreparedOptimizer::require_same_device_operations() const {
  if (context_.accumulation->joined() || !models_.any_reduces()) return;
  comm::require_same_device_operations(context_.group);
}

// What a checkpoint holds of it.

State PreparedOptimizer::state_dict(const std::string& path, std::vector<TensorShard>& shards) {
  wait_for_step();
  const auto parts = shards_of(context_.registry->models());
  State state =
      State::Map{{"inner", shard_optimizer_state(muster::state_dict(*inner_), parameters(), parts, path, shards)}};
  if (!gradients_used_ && decision_.skip_is_requested()) state.set("skip_next", true);
  if (!scaling_) return state;
  auto now = scaling_->save();
  now.found_inf = now.found_inf && !gradients_used_;  // else a step has used what was found
  if (ranks_have_shards())
    now.found_inf = comm::any_rank(context_.group, "overflows of gradients that are saved", now.found_inf);
  state.set("scaler", State::Map{{"scale", now.scaler.scale},
                                 {"growth_tracker", now.scaler.growth_tracker},
                                 {"gradient_scale", now.gradient_scale},
                                 {"loss_scale", now.loss_scale},
                                 {"skipped", decision_.skipped()},
                                 {"found_inf", now.found_inf}});
  return state;
}

std::function<void()> PreparedOptimizer::prepare_load(const State& state, const TensorReader& reader) {
  bind_models();
  wait_for_step();
  require_saved_groups(state.at("inner"), *inner_, *context_.registry);
  const auto parts = shards_of(context_.registry->models());
  // A step updates the shard; with another compute dtype the full parameter is only read.
  const auto updated_dtype = [&](const at::Tensor& parameter) {
    const auto part = parts.find(parameter.unsafeGetTensorImpl());
    return (part == parts.end() ? parameter : part->second.local).scalar_type();
  };
  const auto load_inner = muster::prepare_load(
      *inner_, joined_optimizer_state(state.at("inner"), parameters(), parts, reader), updated_dtype);
  const auto* saved = state.find("scaler");
  if ((saved != nullptr) != scaling_.has_value())
    throw CheckpointError("MU240", std::string("the checkpoint was saved ") + (saved ? "with" : "without") +
                                       " loss scaling, as of '16-mixed', and this program runs " +
                                       (saved ? "without" : "with") + " it: choose the precision it was saved with");
  const auto load = [this, load_inner, skips = state.find("skip_next") != nullptr] {
    load_inner();
    fused_.note_load();
    decision_.forget();
    if (skips) decision_.skip_next();
  };
  if (!saved) return load;
  const auto* found_inf = saved->find("found_inf");
  const LossScaling::Saved scaling{
      .gradient_scale = saved->at("gradient_scale").number(),
      .loss_scale = saved->at("loss_scale").number(),
      .scaler = {.growth_tracker = saved->at("growth_tracker").integer(), .scale = saved->at("scale").number()},
      .found_inf = found_inf && found_inf->boolean()};
  scaling_->require_loadable(scaling.scaler);
  return [this, load, scaling, skipped = saved->at("skipped").boolean()] {
    load();
    scaling_->load(scaling);
    decision_.decide(skipped);
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
