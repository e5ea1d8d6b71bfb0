#include "parallel/sync_batch_norm.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/modules/batchnorm.h>

#include "hook/operator_override.h"
#include "hook/watched_storage.h"
#include "muster/base/error.h"
#include "muster/optim/detail/norm.h"

namespace muster {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// All dimensions except that of the channels.
std::vector<int64_t> sample_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

/// One value per channel, shaped to broadcast with the input.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

/// The number of samples of all ranks. On a device the host never reads it.
struct SampleCount {
  at::Tensor all;       // number of samples, a tensor without dimensions
  at::Tensor unbiased;  // factor that turns the biased variance into the unbiased one

  SampleCount(const at::Tensor& counts, at::ScalarType dtype) {
    if (counts.is_cpu()) {
      const auto sum = counts.sum().item<double>();
      all = optim::wrapped_number(sum);
      unbiased = optim::wrapped_number(sum / std::max(sum - 1, 1.0));
    } else {
      all = counts.sum();
      const auto exact = all.to(at::kDouble);
      unbiased = (exact / (exact - 1).clamp_min(1)).to(dtype);
    }
  }
};

struct Statistics {
  at::Tensor mean, variance;  // the variance is biased
  SampleCount count;
};

/// Computes each rank's mean and the squares around it, and merges them as Chan, Golub and LeVeque do, which never
/// subtracts large sums.
Statistics all_ranks(const comm::Communicator& group, const at::Tensor& input) {
  const auto channels = input.size(1), count = channels == 0 ? 0 : input.numel() / channels;
  auto own = at::zeros({2 * channels + 1}, input.options());
  if (count > 0) {
    const auto dims = sample_dims(input);
    own.narrow(0, 0, channels).copy_(input.mean(dims));
    own.narrow(0, channels, channels).copy_(input.var(dims, /*unbiased=*/false));
    own[2 * channels].fill_(static_cast<double>(count));
  }
  const auto all = group.internal("statistics of a batch normalization").all_gather(own);
  const auto counts = all.select(1, 2 * channels).unsqueeze(1), means = all.narrow(1, 0, channels);
  SampleCount samples(counts, input.scalar_type());
  const auto shares = counts / samples.all;
  const auto mean = (means * shares).sum(0);
  const auto variance = ((all.narrow(1, channels, channels) + (means - mean).square()) * shares).sum(0);
  return {mean, variance, std::move(samples)};
}

/// Keeps the group alive until backward has run.
struct GroupHolder final : torch::CustomClassHolder {
  explicit GroupHolder(comm::Communicator g) : group(std::move(g)) {}
  comm::Communicator group;
};

void update_running(const at::Tensor& running, const at::Tensor& now, double momentum) {
  if (!running.defined()) return;
  optim::scale_by(running, 1 - momentum);
  running.add_(now.to(running.scalar_type()), momentum);
}

class SyncNorm final : public torch::autograd::Function<SyncNorm> {
 public:
  // Arguments that may be missing are optional, because LibTorch asks every Tensor for its device.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& given_weight, const std::optional<at::Tensor>& given_bias,
                            const at::Tensor* running_mean, const at::Tensor* running_var, double momentum, double eps,
                            const comm::Communicator* group) {
    const auto weight = given_weight.value_or(at::Tensor()), bias = given_bias.value_or(at::Tensor());
    const auto x = input.to(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    const auto now = all_ranks(*group, x);
    update_running(*running_mean, now.mean, momentum);
    update_running(*running_var, now.variance * now.count.unbiased, momentum);
    const auto scale = (now.variance + eps).rsqrt();
    context->save_for_backward({input, weight, now.mean, scale});
    context->saved_data["count"] = now.count.all;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(*group));
    context->saved_data["bias"] = bias.defined() ? c10::IValue(bias.scalar_type()) : c10::IValue();
    auto out = (x - along_channels(now.mean, x)) * along_channels(scale, x);
    if (weight.defined()) out = out * along_channels(weight.to(x.scalar_type()), x);
    if (bias.defined()) out = out + along_channels(bias.to(x.scalar_type()), x);
    return out.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3];
    const at::Tensor count = context->saved_data["count"].toTensor();
    const auto holder = c10::static_intrusive_pointer_cast<GroupHolder>(context->saved_data["group"].toCapsule());
    const auto x = input.to(mean.scalar_type()), dy = gradients[0].to(mean.scalar_type());
    const auto dims = sample_dims(x);
    const auto normal = (x - along_channels(mean, x)) * along_channels(scale, x);
    const auto sum_dy = dy.sum(dims), sum_dy_normal = (dy * normal).sum(dims);
    const auto all = at::cat({sum_dy, sum_dy_normal});
    holder->group.internal(std::string(comm::kGradientsLabel) + "a batch normalization").all_reduce(all);
    const auto channels = mean.numel();
    auto dx = dy - along_channels(all.narrow(0, 0, channels) / count, x) -
              normal * along_channels(all.narrow(0, channels, channels) / count, x);
    dx = dx * along_channels(weight.defined() ? scale * weight.to(scale.scalar_type()) : scale, x);
    const auto& bias = context->saved_data["bias"];
    const auto none = at::Tensor();
    return {dx.to(input.scalar_type()),
            weight.defined() ? sum_dy_normal.to(weight.scalar_type()) : none,
            bias.isNone() ? none : sum_dy.to(bias.toScalarType()),
            none,
            none,
            none,
            none,
            none};
  }
};

/// Replaces aten::batch_norm if its running mean is marked.
class NormOverride final : public hook::OperatorOverride {
 public:
  explicit NormOverride(comm::Communicator group) : group_(std::move(group)) {}

  bool run(std::string_view op, size_t arguments, torch::jit::Stack& stack) override {
    constexpr size_t kInput = 0, kWeight = 1, kBias = 2, kMean = 3, kVariance = 4, kTraining = 5, kMomentum = 6,
                     kEps = 7;
    if (op != "aten::batch_norm") return false;
    const auto all = torch::jit::last(stack, arguments);
    if (!all[kTraining].toBool()) return false;
    const auto tensor = [&](size_t i) { return all[i].isTensor() ? all[i].toTensor() : at::Tensor(); };
    auto out = sync_batch_norm(group_, tensor(kInput), tensor(kWeight), tensor(kBias), tensor(kMean), tensor(kVariance),
                               all[kMomentum].toDouble(), all[kEps].toDouble());
    torch::jit::drop(stack, arguments);
    torch::jit::push(stack, std::move(out));
    return true;
  }

 private:
  comm::Communicator group_;
};

template <class Norm>
bool mark_norm(torch::nn::Module& module, const std::string& name,
               const std::shared_ptr<NormOverride>& operator_override) {
  auto* norm = dynamic_cast<Norm*>(&module);
  if (!norm) return false;
  if (!norm->running_mean.defined())
    throw ConfigError("MU165", "the batch normalization '" + name +
                                   "' tracks no running statistics, by which it would be found "
                                   "again; call muster::sync_batch_norm in its place");
  hook::mark_for_override(norm->running_mean, operator_override);
  return true;
}

/// Recurses through children, because a module that is a plain value cannot list itself.
int64_t convert_norms(torch::nn::Module& module, const std::string& name,
                      const std::shared_ptr<NormOverride>& operator_override) {
  int64_t converted = mark_norm<torch::nn::BatchNorm1dImpl>(module, name, operator_override) ||
                      mark_norm<torch::nn::BatchNorm2dImpl>(module, name, operator_override) ||
                      mark_norm<torch::nn::BatchNorm3dImpl>(module, name, operator_override);
  for (const auto& child : module.named_children())
    converted +=
        convert_norms(*child.value(), name.empty() ? child.key() : name + "." + child.key(), operator_override);
  return converted;
}

}  // namespace

at::Tensor sync_batch_norm(const comm::Communicator& group, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean, const at::Tensor& running_var,
                           double momentum, double eps) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncNorm::apply(input, optional(weight), optional(bias), &running_mean, &running_var, momentum, eps, &group);
}

int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Communicator& group) {
  if (group.size() == 1) return 0;
  hook::install_storage_interceptors();
  // A separate group, because gradients of other layers may be in flight while these values are summed.
  const auto operator_override =
      std::make_shared<NormOverride>(group.internal("converting batch normalizations").duplicate());
  return convert_norms(module, "", operator_override);
}

std::string parallel::need_of_every_batch(const torch::nn::Module& module) {
  for (const auto& buffer : module.named_buffers()) {
    const auto& tensor = buffer.value();
    if (!tensor.defined() || !tensor.has_storage() ||
        !std::dynamic_pointer_cast<NormOverride>(hook::override_of(tensor)))
      continue;
    return "the batch normalization '" + buffer.key().substr(0, buffer.key().rfind('.')) +
           "' takes its statistics from all ranks' batches in every forward; keep even_batches on, or train without "
           "convert_sync_batchnorm";
  }
  return {};
}

}  // namespace muster
