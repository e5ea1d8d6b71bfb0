#include "runtime/gradients.h"

#include <ranges>

#include <ATen/core/grad_mode.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "hook/watched_storage.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/detail/norm.h"
#include "muster/parallel/managed_model.h"
#include "optim/device_norm.h"
#include "optim/parameter_groups.h"
#include "runtime_state.h"

namespace muster::runtime {
namespace {

/// Throws: UsageError (MU582) if a parameter that no model of this runtime holds is sharded.
void require_unsharded(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters)
    if (hook::has_key(parameter))
      throw UsageError("MU582", formatted("gradients of a sharded model that this Accelerator or Fabric does not hold "
                                          "(a parameter of shape {}) were to be clipped, scaled or measured: call "
                                          "the Accelerator or Fabric that prepared it, and keep the handle that its "
                                          "prepare() or setup() returned",
                                          parameter.sizes()));
}

/// Calls f(model, parameters) for each model, and f(nullptr, parameters) for parameters that no model holds; each
/// parameter once.
template <class F>
void by_model(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, F&& f) {
  auto rest = optim::distinct_tensors(parameters);
  for (const auto& model : registry.models()) {
    const auto held =
        std::stable_partition(rest.begin(), rest.end(), [&](const at::Tensor& p) { return !model->managed->find(p); });
    if (held != rest.end()) f(model->managed.get(), std::vector<at::Tensor>(held, rest.end()));
    rest.erase(held, rest.end());
  }
  require_unsharded(rest);
  if (!rest.empty()) f(nullptr, rest);
}

/// The p-norm of gradients on this device; the result stays there.
at::Tensor device_gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                                at::Device device, double p) {
  at::Tensor total;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    const auto sum = model ? model->device_gradient_power_sum(part, p, device)
                           : optim::device_power_sum(optim::gradients_of(part), device, p);
    total = total.defined() ? optim::added_power_sums(total, sum, p) : sum;
  });
  return optim::norm_from_power_sum(total, p);
}

/// The product has the bits of a product with a number, even where a kernel would round the factor to the loss's dtype.
at::Tensor scaled(const at::Tensor& loss, double factor, const LossScale& scale) {
  if (!scale.on_device.defined()) {
    factor *= scale.number;
    return factor == 1 ? loss : loss * factor;
  }
  const auto dtype = loss.scalar_type();
  const auto wide = at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  return (loss.to(wide) * (scale.on(loss.device()) * factor).to(wide)).to(dtype);
}

void require_finite(double norm, double order) {
  if (!std::isfinite(norm)) refuse_norm(norm, order, "this step");
}

}  // namespace

void for_each_gradient(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                       const std::function<void(const at::Tensor&)>& f) {
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    if (model) return model->for_each_gradient(part, f);
    for (const auto& gradient : optim::gradients_of(part)) f(gradient);
  });
}

void scale_gradients(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double factor) {
  const at::NoGradGuard no_grad;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    if (model) return model->scale_gradients(part, factor);
    for (const auto& gradient : optim::gradients_of(part)) optim::scale_by(gradient, factor);
  });
}

double gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double p) {
  double total = 0;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    const double sum = model ? model->gradient_power_sum(part, p) : optim::power_sum(optim::gradients_of(part), p);
    total = std::isinf(p) && !std::isnan(sum) ? std::max(total, sum) : total + sum;
  });
  return optim::norm_from_power_sum(total, p);
}

void refuse_norm(double norm, double order, std::string_view whose) {
  throw UsageError("MU175", formatted("the norm of order {} of the gradients of {} is {}; lower the learning rate, or "
                                      "clip with error_if_nonfinite off",
                                      order, whose, norm));
}

bool any_sharded(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters) {
  bool sharded = false;
  by_model(registry, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>&) {
    sharded = sharded || (model && model->sharded());
  });
  return sharded;
}

/// The smallest scale of all optimizers, since one loss may reach the parameters of several.
LossScale GradientProcessing::loss_scale() {
  std::vector<LossScale> scales;
  for_each_optimizer([&](PreparedOptimizer& optimizer) {
    if (auto scale = optimizer.loss_scale()) scales.push_back(std::move(*scale));
  });
  return scales.empty() ? LossScale() : smallest_.of(std::move(scales));
}

LossScale GradientProcessing::rescale_to_loss_scale() {
  if (!scales_losses_) return {};
  const auto scale = loss_scale();
  for_each_optimizer([&](PreparedOptimizer& optimizer) { optimizer.rescale_gradients(scale); });
  return scale;
}

void GradientProcessing::scale_all_gradients(double factor) const {
  std::vector<at::Tensor> parameters;  // some may be there twice, and are scaled once
  const auto add = [&](const std::vector<at::Tensor>& some) {
    parameters.insert(parameters.end(), some.begin(), some.end());
  };
  for (const auto& model : registry_->models()) add(model->module->parameters());
  for_each_optimizer([&](PreparedOptimizer& optimizer) { add(optimizer.parameters()); });
  scale_gradients(*registry_, parameters, factor);
}

void GradientProcessing::backward(const at::Tensor& loss, bool retain_graph) {
  const auto models = registry_->models();
  std::vector<ForwardPause> pauses;
  for (const auto& model : models)
    if (!model->scopes.empty()) pauses.emplace_back(*model);
  TraceScope span(*trace_, "backward");
  for_each_optimizer([](PreparedOptimizer& optimizer) { optimizer.before_backward(); });
  const double factor = accumulation_->loss_factor();
  const auto scale = rescale_to_loss_scale();
  try {
    for (const auto& model : models) model->managed->before_backward();
    scaled(loss, factor, scale).backward({}, retain_graph);
    // Models that the loss did not reach itself end here. A rank without a loss goes through them in this order, too.
    for (const auto& model : std::views::reverse(models)) model->managed->after_backward();
  } catch (...) {
    for (const auto& model : models) model->managed->fail_backward();
    throw;
  }
  for_each_optimizer([](PreparedOptimizer& optimizer) { optimizer.after_backward(); });
  for (const auto& pause : pauses) pause.resume();
}

GradNorm GradientProcessing::clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                                            const ClipOptions& options) {
  if (!accumulation_->sync()) return 0;
  join_other_ranks(parameters);
  joined_->announce("clip_grad_norm", [&] {
    return State::Map{{"parameters", joined_->numbers_of(parameters)},
                      {"max_norm", max_norm},
                      {"norm_type", options.norm_type},
                      {"error_if_nonfinite", options.error_if_nonfinite},
                      {"skip_if_nonfinite", options.skip_if_nonfinite}};
  });
  return clip_reduced(parameters, max_norm, options);
}

GradNorm GradientProcessing::clip_reduced(const std::vector<at::Tensor>& parameters, double max_norm,
                                          const ClipOptions& options) {
  unscale_gradients(&parameters);
  if (const auto device = optim::single_device_of(parameters))
    return clip_on_device(parameters, *device, max_norm, options);
  const double norm = gradient_norm(*registry_, parameters, options.norm_type);
  note_norm(parameters, norm);
  // Under loss scaling such gradients are expected occasionally, and the step will be skipped.
  if (options.error_if_nonfinite && !scales_losses_) require_finite(norm, options.norm_type);
  if (options.skip_if_nonfinite) {
    bool skips = !std::isfinite(norm);
    for_each_holder(parameters, [&](PreparedOptimizer& optimizer) { skips = optimizer.skip_next_if(skips); });
    if (skips) return norm;
  }
  torch::NoGradGuard no_grad;
  const double factor = optim::clip_coefficient(norm, max_norm);
  for_each_gradient(*registry_, parameters, [&](const at::Tensor& gradient) { optim::scale_by(gradient, factor); });
  return norm;
}

/// As clip_grad_norm(), for gradients on a device: a norm that must be finite and is not makes the step skip.
GradNorm GradientProcessing::clip_on_device(const std::vector<at::Tensor>& parameters, at::Device device,
                                            double max_norm, const ClipOptions& options) {
  const torch::NoGradGuard no_grad;
  GradNorm norm(device_gradient_norm(*registry_, parameters, device, options.norm_type));
  note_norm(parameters, norm);
  auto factor = optim::clip_coefficient(norm.on_device(), max_norm);
  if (const bool reports = options.error_if_nonfinite && !scales_losses_; reports || options.skip_if_nonfinite) {
    bool held = false;
    for_each_holder(parameters, [&](PreparedOptimizer& optimizer) {
      optimizer.skip_if_not_finite(norm.on_device(), options.norm_type, reports);
      held = true;
    });
    if (reports && !held) require_finite(norm, options.norm_type);  // no step will report it
    factor = torch::where(norm.on_device().isfinite(), factor, torch::ones_like(factor));
  }
  for_each_gradient(*registry_, parameters, [&](const at::Tensor& gradient) { optim::scale_by(gradient, factor); });
  return norm;
}

GradNorm GradientProcessing::grad_norm(const std::vector<at::Tensor>& parameters) {
  if (!accumulation_->sync()) return 0;
  join_other_ranks(parameters);
  joined_->announce("grad_norm", [&] { return State::Map{{"parameters", joined_->numbers_of(parameters)}}; });
  return norm_of_reduced(parameters);
}

GradNorm GradientProcessing::norm_of_reduced(const std::vector<at::Tensor>& parameters) {
  unscale_gradients(&parameters);
  const auto device = optim::single_device_of(parameters);
  auto norm = device ? GradNorm(device_gradient_norm(*registry_, parameters, *device, 2))
                     : GradNorm(gradient_norm(*registry_, parameters, 2));
  note_norm(parameters, norm);
  return norm;
}

void GradientProcessing::note_norm(const std::vector<at::Tensor>& parameters, const GradNorm& norm) const {
  if (!scales_losses_) return;
  for_each_holder(parameters, [&](PreparedOptimizer& optimizer) { optimizer.note_norm(norm); });
}

void GradientProcessing::clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!accumulation_->sync()) return;
  join_other_ranks(parameters);
  joined_->announce("clip_grad_value", [&] {
    return State::Map{{"parameters", joined_->numbers_of(parameters)}, {"clip_value", clip_value}};
  });
  clip_reduced_values(parameters, clip_value);
}

void GradientProcessing::clip_reduced_values(const std::vector<at::Tensor>& parameters, double clip_value) {
  unscale_gradients(&parameters);
  torch::NoGradGuard no_grad;
  for_each_gradient(*registry_, parameters,
                    [&](const at::Tensor& gradient) { gradient.clamp_(-clip_value, clip_value); });
}

void GradientProcessing::follow(const State& step) {
  const auto& what = step.at("what").text();
  const auto& arguments = step.at("arguments");
  accumulation_->end_left_window();
  joined_->adopt_gradient_states(step.at("gradients"));
  if (const auto* optimizer = arguments.find("optimizer")) {
    const auto stepped = optimizers_->at(static_cast<size_t>(optimizer->integer())).lock();
    if (what == "step") stepped->follow_step(arguments.at("groups"));
    else stepped->clear_gradients(arguments.at("set_to_none").boolean());
    return;
  }
  const auto parameters = joined_->parameters_of(arguments.at("parameters"));
  if (what == "grad_norm") norm_of_reduced(parameters);
  else if (what == "clip_grad_value") clip_reduced_values(parameters, arguments.at("clip_value").number());
  else
    clip_reduced(parameters, arguments.at("max_norm").number(),
                 {.error_if_nonfinite = arguments.at("error_if_nonfinite").boolean(),
                  .norm_type = arguments.at("norm_type").number(),
                  .skip_if_nonfinite = arguments.at("skip_if_nonfinite").boolean()});
}

void GradientProcessing::join_other_ranks(const std::vector<at::Tensor>& parameters) const {
  accumulation_->count_last();
  for_each_optimizer([&](PreparedOptimizer& optimizer) { optimizer.join_other_ranks(&parameters); });
}

bool GradientProcessing::join_other_ranks(PreparedOptimizer& optimizer) const {
  accumulation_->count_last();
  optimizer.join_other_ranks();
  return optimizer.models_have_gradients();
}

/// With several optimizers, some may not step next, and reductions for those would waste time.
void GradientProcessing::join_for_the_only_optimizer() const {
  std::vector<PreparedOptimizer*> all;
  for_each_optimizer([&](PreparedOptimizer& optimizer) { all.push_back(&optimizer); });
  if (all.size() != 1) return;
  accumulation_->count_last();
  all.front()->join_other_ranks();
}

void GradientProcessing::unscale_gradients(const std::vector<at::Tensor>* of) {
  if (!scales_losses_) return;
  const auto unscale = [](PreparedOptimizer& optimizer) { optimizer.unscale(); };
  if (of) return for_each_holder(*of, unscale);
  join_for_the_only_optimizer();
  for_each_optimizer(unscale);
}

bool GradientProcessing::optimizer_step_was_skipped() const {
  bool skipped = false;
  for_each_optimizer([&](PreparedOptimizer& optimizer) { skipped = skipped || optimizer.step_was_skipped(); });
  return skipped;
}

void GradientProcessing::for_each_optimizer(const std::function<void(PreparedOptimizer&)>& f) const {
  for (const auto& entry : *optimizers_)
    if (const auto optimizer = entry.lock()) f(*optimizer);
}

void GradientProcessing::for_each_holder(const std::vector<at::Tensor>& parameters,
                                         const std::function<void(PreparedOptimizer&)>& f) const {
  std::unordered_set<c10::TensorImpl*> asked;
  for (const auto& parameter : parameters) asked.insert(parameter.unsafeGetTensorImpl());
  for_each_optimizer([&](PreparedOptimizer& optimizer) {
    const auto own = optimizer.parameters();
    if (std::any_of(own.begin(), own.end(),
                    [&](const at::Tensor& parameter) { return asked.contains(parameter.unsafeGetTensorImpl()); }))
      f(optimizer);
  });
}

std::function<GradNorm()> grad_norm_of(const torch::nn::Module& module, std::weak_ptr<RuntimeState> state) {
  return [&module, state = std::move(state)] {
    const auto owner = state.lock();
    if (!owner)
      throw UsageError(
          "MU324",
          "grad_norm() of a prepared model was called after the Accelerator or Fabric that prepared it was "
          "destroyed; keep that object as long as the model trains");
    return owner->gradient_processing().grad_norm(module.parameters());
  };
}

}  // namespace muster::runtime
