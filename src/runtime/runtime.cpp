#include "muster/runtime/runtime.h"

#include "parts.h"

#include "muster/base/error.h"
#include "muster/checkpoint/weights.h"

#include <cstdio>

namespace muster {

Runtime::Runtime(const RuntimeOptions& options) : parts_(std::make_shared<runtime::Parts>(options)) {}
Runtime::~Runtime() = default;
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;

void Runtime::launch() { parts_->launch(); }
int Runtime::rank() const { return parts_->cluster().rank; }
int Runtime::local_rank() const { return parts_->cluster().local_rank; }
int Runtime::node_rank() const { return parts_->cluster().node_rank; }
int Runtime::world_size() const { return parts_->cluster().world_size; }
c10::Device Runtime::device() const { return parts_->device(); }
const dist::Communicator& Runtime::group() const { return parts_->group(); }

void Runtime::backward(const at::Tensor& loss, BackwardOptions options) { parts_->backward(loss, options.retain_graph); }

precision::AutocastScope Runtime::autocast() const {
  return precision::AutocastScope(parts_->precision(), parts_->device().type());
}

double Runtime::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipOptions options) {
  return parts_->clip_grad_norm(parameters, max_norm, options.norm_type, options.error_if_nonfinite);
}

void Runtime::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  parts_->clip_grad_value(parameters, clip_value);
}

double Runtime::clip_gradients_of(const Optimizer& optimizer, const ClipGradientsOptions& options) {
  if (options.clip_val.has_value() == options.max_norm.has_value())
    throw ConfigError("MU179", "clip_gradients wants exactly one of clip_val and max_norm");
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.inner().param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (options.max_norm) return clip_grad_norm_(parameters, *options.max_norm, {options.error_if_nonfinite, options.norm_type});
  clip_grad_value_(parameters, *options.clip_val);
  return 0;
}

void Runtime::barrier() const { group().barrier(); }
void Runtime::set_seed(uint64_t seed, bool per_rank) { parts_->set_seed(seed, per_rank); }
std::string Runtime::plan() const { return parts_->plan(); }

void Runtime::print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void Runtime::write_model(const runtime::PreparedModel& model, const std::filesystem::path& folder,
                          const SaveWeightsOptions& options) const {
  // Every rank takes part in collecting the values; only the main rank writes, and all learn how it went.
  const auto state = model.managed->full_state(/*main_only=*/true);
  runtime::first_here(group(), is_main(), [&] {
    if (is_main()) save_weights(state, folder, options);
  });
}

}  // namespace muster
