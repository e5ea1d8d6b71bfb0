#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

/// Functions that need no other rank: for modules, and for gradients that are complete on this rank.
namespace muster::parallel {

class ManagedModel;

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// The parameters without repetitions (tied ones by their first name), in order of registration.
std::vector<NamedTensor> distinct_parameters(const torch::nn::Module& module);
std::vector<NamedTensor> distinct_buffers(const torch::nn::Module& module);
/// Those of them that require a gradient.
std::vector<NamedTensor> trainable(const std::vector<NamedTensor>& all);
std::vector<at::Tensor> tensors_in(const std::vector<NamedTensor>& all);

/// Calls f once for each gradient of these parameters.
void each_local_gradient(const std::vector<at::Tensor>& parameters, const std::function<void(const at::Tensor&)>& f);
/// What the model's for_each_gradient() calls f with.
std::vector<at::Tensor> gradients_of(ManagedModel& model, const std::vector<at::Tensor>& parameters);
void zero_local_gradient(const at::Tensor& parameter, bool set_to_none);
/// Throws: UsageError (MU151), because a backward saw only gradients of forwards outside of every scope.
[[noreturn]] void refuse_bypass();
/// Parameters and buffers, under every name that they have.
std::vector<std::pair<std::string, at::Tensor>> local_state(const torch::nn::Module& module);

/// One line per tensor: "parameter fc.weight: Float [10, 64], strides [64, 1], trainable".
std::vector<std::string> describe_tensors(const std::vector<NamedTensor>& parameters,
                                          const std::vector<NamedTensor>& buffers);

/// Throws: ConfigError (MU056), with its name, for a parameter or buffer whose dtype ranks cannot exchange.
void require_sendable(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers);

}  // namespace muster::parallel
