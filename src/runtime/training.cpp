#include "muster/runtime/detail/training.h"

#include <algorithm>

#include "memory_owners.h"
#include "muster/base/error.h"
#include "muster/optim/clip.h"
#include "muster/parallel/detail/sync_batch_norm.h"
#include "muster/runtime/detail/profile.h"
#include "runtime_state.h"

namespace muster::runtime {

void Training::backward(const at::Tensor& loss, BackwardOptions options) {
  with_error_context([this](c10::Error& error) { state_->add_error_context(error); },
                     [&] { state_->gradient_processing().backward(loss, options.retain_graph); });
}

std::shared_ptr<Accumulation> Training::next_micro_batch() { return state_->next_micro_batch(); }
bool Training::sync_gradients() const { return state_->accumulation()->sync(); }
int Training::gradient_accumulation_steps() const { return state_->accumulation()->num_steps(); }
void Training::set_gradient_accumulation_steps(int steps) { state_->accumulation()->set_num_steps(steps); }

precision::AutocastScope Training::autocast(const AutocastOptions& options) const {
  return precision::AutocastScope(state_->precision(), state_->device().type(), options);
}

void Training::unscale_gradients() { state_->gradient_processing().unscale_gradients(nullptr); }
void Training::unscale_gradients(const Optimizer& optimizer) {
  optimizer.prepared()->join_other_ranks();
  optimizer.prepared()->unscale();
}
bool Training::optimizer_step_was_skipped() const {
  return state_->launched() && state_->gradient_processing().optimizer_step_was_skipped();
}

GradNorm Training::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options) {
  return state_->gradient_processing().clip_grad_norm(parameters, max_norm, options);
}

GradNorms Training::clip_grad_norm_(const Optimizer& optimizer, const PerGroup<double>& max_norm, ClipOptions options) {
  const auto& groups = Optimizer(optimizer).param_groups();
  const auto bounds = optim::clip_bounds(max_norm, groups.size());
  GradNorms norms;
  for (size_t g = 0; g < groups.size(); ++g) norms.push_back(clip_grad_norm_(groups[g].params(), bounds[g], options));
  return norms;
}

void Training::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  state_->gradient_processing().clip_grad_value(parameters, clip_value);
}

GradNorm Training::clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options) {
  if (options.clip_val.has_value() == options.max_norm.has_value())
    throw ConfigError("MU179", "clip_gradients wants exactly one of clip_val and max_norm");
  std::vector<at::Tensor> parameters;
  for (const auto& group : Optimizer(optimizer).param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (options.max_norm)
    return clip_grad_norm_(parameters, *options.max_norm,
                           {.error_if_nonfinite = options.error_if_nonfinite, .norm_type = options.norm_type});
  clip_grad_value_(parameters, *options.clip_val);
  return 0;
}

void Training::set_seed(uint64_t seed, bool per_rank) { state_->set_seed(seed, per_rank); }
void Training::record_profile(const std::function<void()>& f, const ProfileOptions& options) const {
  Profile recording(state_->trace(), group_of(*state_), options);
  f();
  recording.write();
}
int64_t Training::convert_batch_norms(torch::nn::Module& module) const {
  return muster::convert_sync_batchnorm(module, group_of(*state_));
}

void Training::run_joined(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                          const UnevenInputsOptions& options) {
  state_->join_uneven_inputs(std::move(models), f, options);
}

void Training::forget_freed() { state_->forget_freed(); }
const std::vector<std::shared_ptr<FabricCallback>>& Training::callbacks() const { return state_->callbacks(); }

int64_t Training::first_epoch(int64_t count) {
  state_->note_epochs(count);
  auto& left = state_->saves().epochs_done;
  const auto first = std::min(left, std::max<int64_t>(count, 0));
  left -= first;
  return first;
}

}  // namespace muster::runtime
