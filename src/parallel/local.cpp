#include "parallel/local.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "comm/operation.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/parallel/managed_model.h"

namespace muster::parallel {
namespace {

/// A tensor's impl is its identity: all its handles share it.
std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& all) {
  std::unordered_set<c10::TensorImpl*> seen;
  std::vector<NamedTensor> found;
  for (const auto& entry : all)
    if (seen.insert(entry.value().unsafeGetTensorImpl()).second) found.push_back({entry.key(), entry.value()});
  return found;
}

}  // namespace

std::vector<NamedTensor> distinct_parameters(const torch::nn::Module& module) {
  return distinct(module.named_parameters());
}

std::vector<NamedTensor> distinct_buffers(const torch::nn::Module& module) { return distinct(module.named_buffers()); }

std::vector<NamedTensor> trainable(const std::vector<NamedTensor>& all) {
  std::vector<NamedTensor> some;
  std::ranges::copy_if(all, std::back_inserter(some), [](const auto& named) { return named.tensor.requires_grad(); });
  return some;
}

std::vector<at::Tensor> tensors_in(const std::vector<NamedTensor>& all) {
  std::vector<at::Tensor> tensors;
  for (const auto& named : all) tensors.push_back(named.tensor);
  return tensors;
}

void each_local_gradient(const std::vector<at::Tensor>& parameters, const std::function<void(const at::Tensor&)>& f) {
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    // Through the impl, because Tensor::grad() would first ask autograd whether it is a leaf, and may warn.
    auto* impl = parameter.unsafeGetTensorImpl();
    if (impl->grad().defined() && seen.insert(impl).second) f(impl->grad());
  }
}

std::vector<at::Tensor> gradients_of(ManagedModel& model, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  model.for_each_gradient(parameters, [&](const at::Tensor& gradient) { gradients.push_back(gradient); });
  return gradients;
}

void zero_local_gradient(const at::Tensor& parameter, bool set_to_none) {
  // mutable_grad() would allocate autograd metadata for a parameter that has none.
  if (!parameter.unsafeGetTensorImpl()->grad().defined()) return;
  auto& gradient = parameter.mutable_grad();
  if (set_to_none) gradient.reset();
  else gradient.detach_().zero_();  // as LibTorch's zero_grad: releases the old graph
}

void refuse_bypass() {
  throw UsageError("MU151",
                   "backward reached parameters of a prepared model whose forward ran outside of the handle that "
                   "prepare() returned, without autocast and synchronisation: call model(x), or "
                   "model.run(&Net::other, x) for another entry");
}

std::vector<std::pair<std::string, at::Tensor>> local_state(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (const auto& entry : module.named_parameters()) state.emplace_back(entry.key(), entry.value().detach());
  for (const auto& entry : module.named_buffers()) state.emplace_back(entry.key(), entry.value().detach());
  return state;
}

std::vector<std::string> describe_tensors(const std::vector<NamedTensor>& parameters,
                                          const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const NamedTensor& named) {
    std::ostringstream line;
    line << what << ' ' << named.name << ": " << c10::toString(named.tensor.scalar_type()) << ' '
         << named.tensor.sizes() << ", strides " << named.tensor.strides()
         << (named.tensor.requires_grad() ? ", trainable" : ", no gradient");
    lines.push_back(line.str());
  };
  for (const auto& named : parameters) add("parameter", named);
  for (const auto& named : buffers) add("buffer", named);
  return lines;
}

void require_sendable(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers) {
  const auto check = [](const char* what, const NamedTensor& named) {
    if (comm::takes_dtype(named.tensor.scalar_type())) return;
    throw ConfigError("MU056", formatted("{} '{}' is of {}, which ranks cannot exchange: keep its numbers in a real "
                                         "dtype (at::view_as_real of a complex tensor, at::view_as_complex in "
                                         "forward), or train on one rank",
                                         what, named.name, c10::getDtypeNames(named.tensor.scalar_type()).first));
  };
  for (const auto& named : parameters) check("parameter", named);
  for (const auto& named : buffers) check("buffer", named);
}

}  // namespace muster::parallel
