#include "muster/runtime/detail/runtime.h"

#include "muster/base/error.h"
#include "muster/checkpoint/weights.h"
#include "muster/optim/clip.h"
#include "session.h"
#include "weight_stream.h"

namespace muster {

Runtime::Runtime(const RuntimeOptions& options) : Saving(std::make_shared<runtime::Session>(options)) {}
Runtime::~Runtime() {
  if (session_) session_->leave_group();
}
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;

void Runtime::backward(const at::Tensor& loss, BackwardOptions options) {
  session_->backward(loss, options.retain_graph);
}

std::shared_ptr<runtime::Accumulation> Runtime::next_micro_batch() { return session_->next_micro_batch(); }
bool Runtime::sync_gradients() const { return session_->accumulation()->sync(); }
int Runtime::gradient_accumulation_steps() const { return session_->accumulation()->num_steps(); }
void Runtime::set_gradient_accumulation_steps(int steps) { session_->accumulation()->set_num_steps(steps); }

precision::AutocastScope Runtime::autocast(AutocastOptions options) const {
  return precision::AutocastScope(session_->precision(), session_->device().type(), options);
}

void Runtime::unscale_gradients() { session_->unscale_gradients(nullptr); }
void Runtime::unscale_gradients(const Optimizer& optimizer) {
  optimizer.prepared()->join_other_ranks();
  optimizer.prepared()->unscale();
}
bool Runtime::optimizer_step_was_skipped() const { return session_->optimizer_step_was_skipped(); }

double Runtime::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options) {
  return session_->clip_grad_norm(parameters, max_norm, options);
}

std::vector<double> Runtime::clip_grad_norm_(const Optimizer& optimizer, const PerGroup<double>& max_norm,
                                             ClipOptions options) {
  const auto& groups = optimizer.inner().param_groups();
  const auto bounds = optim::clip_bounds(max_norm, groups.size());
  std::vector<double> norms;
  for (size_t g = 0; g < groups.size(); ++g) norms.push_back(clip_grad_norm_(groups[g].params(), bounds[g], options));
  return norms;
}

void Runtime::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  session_->clip_grad_value(parameters, clip_value);
}

double Runtime::clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options) {
  if (options.clip_val.has_value() == options.max_norm.has_value())
    throw ConfigError("MU179", "clip_gradients wants exactly one of clip_val and max_norm");
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.inner().param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (options.max_norm)
    return clip_grad_norm_(parameters, *options.max_norm,
                           {.error_if_nonfinite = options.error_if_nonfinite, .norm_type = options.norm_type});
  clip_grad_value_(parameters, *options.clip_val);
  return 0;
}

void Runtime::set_seed(uint64_t seed, bool per_rank) { session_->set_seed(seed, per_rank); }
const std::shared_ptr<Trace>& Runtime::trace() const { return session_->trace(); }
std::string Runtime::plan() const { return session_->plan(); }

void Runtime::run_joined(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                         const UnevenInputsOptions& options) {
  session_->join_uneven_inputs(std::move(models), f, options);
}

void Runtime::forget_freed() { session_->forget_freed(); }
const std::vector<std::shared_ptr<Callback>>& Runtime::callbacks() const { return session_->callbacks(); }

void Runtime::write_model(const runtime::PreparedModel& model, const std::filesystem::path& folder,
                          const SaveWeightsOptions& options) const {
  runtime::WeightStream stream(model, group());
  // Only the main rank writes, and all learn how it went.
  runtime::first_here(group(), /*first=*/true, [&] {
    stream.run([&](const NamedTensors& tensors, const ValueOf& value_of) {
      save_weights(tensors, folder, options, value_of);
    });
  });
}

}  // namespace muster
