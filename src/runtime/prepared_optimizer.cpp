#include "prepared_optimizer.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/lbfgs.h>
#include <torch/types.h>

#include "base/log.h"
#include "comm/agreement.h"
#include "comm/device_agreement.h"
#include "gradients.h"
#include "model_state.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/optimizer_state.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "param_groups.h"
#include "state_digest.h"

namespace muster::runtime {
namespace {

/// The number of completed reductions; 0 for a model that has none.
int64_t reduction_count_of(const PreparedModel& model) {
  const auto* reductions = model.managed->gradient_reductions();
  return reductions ? reductions->reduction_count() : 0;
}

}  // namespace

PreparedOptimizer::PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, OptimizerContext context)
    : inner_(std::move(inner)), context_(std::move(context)), fused_(*inner_) {
  if (context_.scaling) scaler_.emplace(*context_.scaling);
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
  const auto holds = [&](const auto& model) { return model->managed->expects(parameter); };
  if (std::any_of(models_.begin(), models_.end(), [&](const ModelUse& use) { return holds(use.model); })) return false;
  const auto models = context_.registry->models();
  const auto holder = std::find_if(models.begin(), models.end(), holds);
  if (holder != models.end()) {
    models_.push_back({*holder, reduction_count_of(**holder), context_.registry->index_of(**holder), nullptr});
    wait_for_step();
    move_states(**holder);
    shard_state(**holder);
    fused_.add_flat_parameters(*(*holder)->managed);
    return true;
  }
  if (require_all && parameter.requires_grad() && context_.group.size() > 1) {
    throw ConfigError("MU178", "parameter " + std::to_string(index) +
                                   " of a prepared optimizer belongs to no prepared module, so "
                                   "its gradient would differ from rank to rank; prepare the module that owns it");
  }
  return false;
}

/// Moves state that the optimizer had before its model was moved to the device.
void PreparedOptimizer::move_states(const PreparedModel& model) {
  for (const auto& parameter : parameters())
    if (model.managed->expects(parameter)) move_state(*inner_, parameter);
}

/// Shards state that the optimizer had before its model was sharded.
void PreparedOptimizer::shard_state(const PreparedModel& model) {
  for (const auto& shard : parallel::shards_of(*model.managed))
    change_state(*inner_, shard.parameter, [&](const at::Tensor& whole) { return padded_shard(whole, shard); });
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
  for (auto& use : models_) use.reductions = reduction_count_of(*use.model) - (reduced ? 1 : 0);
}

bool PreparedOptimizer::needs_reduction(const ModelUse& use) const {
  auto& managed = *use.model->managed;
  const auto* reductions = managed.gradient_reductions();
  return reductions && managed.gradient_sync() &&
         (reductions->reduction_count() == use.reductions || !reductions->has_gradients());
}

/// Whether a model needs a reduction: one of this optimizer, or another that the same loss goes through.
bool PreparedOptimizer::needs_reduction_in_order(int64_t index) const {
  for (const auto& use : models_)
    if (use.index == index) return needs_reduction(use);
  const auto model = context_.registry->at(index);
  return model && model->managed->gradient_reductions() && model->managed->gradient_sync() &&
         !context_.registry->reductions().seen(index);
}

void PreparedOptimizer::join_other_ranks(const std::vector<at::Tensor>* of) {
  if (context_.group.size() == 1 || !context_.accumulation->sync()) return;
  bind(/*require_all=*/false);
  // The order is not known yet. Assume that backward reaches models in the reverse of the order in which the program
  // names them.
  for (const auto& use : std::views::reverse(models_)) {
    if (!needs_reduction(use)) continue;
    const auto holds = [&](const at::Tensor& parameter) { return use.model->managed->find(parameter) != nullptr; };
    if (of && std::none_of(of->begin(), of->end(), holds)) continue;
    if (context_.before_reduction) context_.before_reduction();
    const auto order = use.order;
    const auto record =
        c10::make_scope_exit([&] {  // also if parameters turn out to be due: other ranks have recorded it
          if (order) context_.registry->reductions().repeat(order);
        });
    repeat_reductions(order ? *order : parallel::ReductionRecord::Order{{use.index}, {use.index}});
  }
}

void PreparedOptimizer::repeat_reductions(const parallel::ReductionRecord::Order& order) {
  std::map<int64_t, std::shared_ptr<PreparedModel>> started;
  for (const auto index : order.began)
    if (needs_reduction_in_order(index))
      (started[index] = context_.registry->at(index))->managed->gradient_reductions()->start_reduction();
  std::exception_ptr first;
  for (const auto index : order.ended) try {
      if (const auto model = started.find(index); model != started.end())
        model->second->managed->gradient_reductions()->finish_reduction();
    } catch (const UsageError&) {  // other ranks' backward has sent the messages of all models
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
}

bool PreparedOptimizer::models_have_gradients() const {
  return std::ranges::any_of(models_, [&](const ModelUse& use) {
    auto& managed = *use.model->managed;
    if (const auto* reductions = managed.gradient_reductions()) return reductions->has_gradients();
    bool found = false;
    managed.for_each_gradient(parameters(), [&](const at::Tensor&) { found = true; });
    return found;
  });
}

void PreparedOptimizer::note_reductions() {
  for (auto& use : models_) use.reductions = reduction_count_of(*use.model);
  if (context_.group.size() > 1) context_.registry->reductions().consume();
}

void PreparedOptimizer::for_each_other(const std::function<void(optim::FusedOptimizer&)>& f) const {
  for (const auto& entry : *context_.optimizers)
    if (const auto other = entry.lock(); other && other.get() != this) f(other->fused_);
}

bool PreparedOptimizer::evaluates_closure() const {
  return !fused_.fused() && (!scaler_ || dynamic_cast<const torch::optim::LBFGS*>(inner_.get()));
}

at::Tensor PreparedOptimizer::update(const torch::optim::Optimizer::LossClosure& closure) {
  const auto after = c10::make_scope_exit(
      [this] { for_each_other([](optim::FusedOptimizer& other) { other.after_another_step(); }); });
  for_each_other([](optim::FusedOptimizer& other) { other.before_another_step(); });
  if (!closure || context_.group.size() == 1) return fused_.step(closure);
  return fused_.step([&] {
    note_reductions();
    auto loss = closure();
    join_other_ranks();
    require_same_device_operations();
    auto mean = loss.defined() ? loss.detach().clone() : at::zeros({}, device_of_parameters().value_or(at::kCPU));
    context_.group.internal("the mean loss of a closure").all_reduce(mean, comm::ReduceOp::mean);
    return mean;
  });
}

void PreparedOptimizer::update_unless(const at::Tensor& flag) {
  const auto after = c10::make_scope_exit(
      [this] { for_each_other([](optim::FusedOptimizer& other) { other.after_another_step(); }); });
  for_each_other([](optim::FusedOptimizer& other) { other.before_another_step(); });
  flag_decides_ = true;
  fused_.step_unless(flag);
}

at::Tensor PreparedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (!context_.accumulation->sync()) return {};
  wait_for_step();
  TraceScope span(*context_.trace, "optimizer step");
  context_.accumulation->note_step();
  bind(/*require_all=*/true);
  if (!closure) {
    join_other_ranks();
    require_same_device_operations();
  }
  if (context_.group.size() > 1)
    for (auto& use : models_) use.order = context_.registry->reductions().latest(use.index);
  if (closure && scaler_)
    throw UsageError(
        "MU146",
        "an optimizer that calls back for gradients cannot work with loss scaling, as of '16-mixed', which may skip "
        "a step: choose 'bf16-mixed', or an optimizer without a closure");
  const auto flag = send_flag();
  skipped_ = !flag.defined() && scaler_ && !gradients_are_finite();
  skipped_ = std::exchange(skip_next_, false) || skipped_;
  if (flag.defined() && (closure || skipped_ || context_.needs_found_inf_at_once || !fused_.takes_found_inf())) {
    const bool left_out = skipped_;
    wait_for_step();
    skipped_ = skipped_ || left_out;
  }
  if (skipped_) fused_.note_load();  // from here on, as after any step, the program may edit parameters
  at::Tensor loss;
  if (flag_.pending()) update_unless(flag);
  else if (!skipped_) loss = update(closure);
  note_reductions();
  gradients_used_ = true;
  context_.registry->note_step();
  if (!skipped_ && context_.after_step) {
    Optimizer handle(shared_from_this());
    context_.after_step(handle);
  }
  return loss;
}

void PreparedOptimizer::zero_grad(bool set_to_none) {
  if (!context_.accumulation->sync() && !context_.accumulation->begins()) return;
  bind(/*require_all=*/true);
  fused_.zero_grad(set_to_none);
  note_reductions();
  gradients_used_ = false;
  gradient_scale_ = {};
  unscaled_ = false;
  drop_flags();
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

// Decides whether a step is made: loss scales, norms that are not finite, and ranks that disagree.

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
  if (!scaler_) return std::nullopt;
  const auto device = device_of_parameters();
  if (device_scaler_ && device_scaler_->device() != device) {
    wait_for_step();
    device_scaler_.reset();
  }
  if (device && !device_scaler_) device_scaler_.emplace(*context_.scaling, scaler_->state_dict(), *device);
  return device ? LossScale{.on_device = device_scaler_->scale()} : LossScale{scaler_->scale()};
}

bool PreparedOptimizer::has_gradients() const {
  bool found = false;
  for_each_gradient(*context_.registry, parameters(), [&](const at::Tensor&) { found = true; });
  return found;
}

void PreparedOptimizer::rescale_gradients(const LossScale& scale) {
  if (!scaler_) return;
  if (const bool on_device = scale.on_device.defined(); !(gradient_scale_ == scale) && (!on_device || has_gradients()))
    scale_gradients(*context_.registry, parameters(), scale.value() / gradient_scale_.value());
  loss_scale_ = gradient_scale_ = scale;
  unscaled_ = false;
}

void PreparedOptimizer::unscale() {
  if (!scaler_ || unscaled_) return;
  std::vector<at::Tensor> gradients;
  for_each_gradient(*context_.registry, parameters(),
                    [&](const at::Tensor& gradient) { gradients.push_back(gradient); });
  if (device_scaler_) device_scaler_->unscale(gradients, gradient_scale_.on(device_scaler_->device()));
  else scaler_->unscale(gradients, gradient_scale_.value());
  gradient_scale_ = {};
  unscaled_ = true;
}

bool PreparedOptimizer::gradients_are_finite() {
  unscale();
  bool found = scaler_->found_inf();
  // Gradients that are not sharded are equal on all ranks, so no message is needed.
  if (context_.group.size() > 1 && any_sharded(*context_.registry, parameters()))
    found = comm::any_rank(context_.group, "overflows of sharded gradients", found);
  scaler_->update(found, loss_scale_.value());
  return !found;
}

at::Tensor PreparedOptimizer::send_flag() {
  if (!device_scaler_) return flag_.send({}, {});
  unscale();
  const auto found = device_scaler_->found_inf();
  if (context_.group.size() > 1 && any_sharded(*context_.registry, parameters()))
    context_.group.internal("overflows of sharded gradients").all_reduce(found, comm::ReduceOp::max);
  device_scaler_->update(loss_scale_.on(device_scaler_->device()));
  return flag_.send(found, device_scaler_->state());
}

void PreparedOptimizer::wait_for_step() {
  if (!flag_.pending()) return;
  const auto known = flag_.known();
  skipped_ = known.skipped;
  if (std::exchange(flag_decides_, false) && skipped_) fused_.undo_step_count();
  const auto calls = flag_.take_calls();
  if (known.scaler) follow_scale(*known.scaler);  // before calls, which may throw
  for (const auto& call : calls) call();
  if (known.bad_norm) refuse_norm(known.bad_norm->first, known.bad_norm->second, "the last step, which was left out,");
}

/// After an error the device's scale no longer equals the host's.
void PreparedOptimizer::follow_scale(const GradScalerState& state) {
  try {
    scaler_->follow(state);
  } catch (const Error&) {
    device_scaler_.reset();
    throw;
  }
}

void PreparedOptimizer::drop_flags() {
  skip_next_ = false;
  if (const auto norm = flag_.drop()) refuse_norm(norm->first, norm->second, "this step, which zero_grad() gives up,");
}

bool PreparedOptimizer::step_was_skipped() {
  wait_for_step();
  return skipped_;
}

bool PreparedOptimizer::holds(const std::vector<at::Tensor>& asked) const {
  const auto own = parameters();
  return std::any_of(own.begin(), own.end(), [&](const at::Tensor& mine) {
    return std::any_of(asked.begin(), asked.end(), [&](const at::Tensor& one) { return one.is_same(mine); });
  });
}

void PreparedOptimizer::skip_if_holding(const std::vector<at::Tensor>& asked) {
  skip_next_ = skip_next_ || holds(asked);
}

bool PreparedOptimizer::skip_if_not_finite(const std::vector<at::Tensor>& asked, const at::Tensor& norm, double order,
                                           bool reports) {
  if (!holds(asked)) return false;
  flag_.skip_if(norm.isfinite().logical_not().to(at::kFloat).view({1}));
  if (reports) flag_.report(norm, order);
  return true;
}

std::optional<GradScalerState> PreparedOptimizer::scaler_state() {
  wait_for_step();
  return scaler_ ? std::optional(scaler_->state_dict()) : std::nullopt;
}

void PreparedOptimizer::load_scaler_state(const GradScalerState& state) {
  wait_for_step();
  scaler_->load_state_dict(state);
  device_scaler_.reset();
}

void PreparedOptimizer::require_same_device_operations() const {
  const auto reduces = [](const ModelUse& use) { return use.model->managed->gradient_sync(); };
  if (context_.accumulation->joined() || std::ranges::none_of(models_, reduces)) return;
  comm::require_same_device_operations(context_.group);
}

// What a checkpoint holds of it.

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
  // A step updates the shard; with another compute dtype the full parameter is only read.
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
