#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "base/text.h"
#include "checkpoint/saved_tensors.h"
#include "device_bytes.h"
#include "muster/base/error.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"

namespace muster {
namespace {

constexpr std::string_view kBatchCount = "num_batches_tracked";

/// Destinations of the values, determined before anything is copied.
struct Fitting : StateDictFit {
  std::vector<std::string> different;
};

/// Whether copy_() can convert values from one dtype to the other.
bool converts(at::ScalarType from, at::ScalarType to) {
  const auto is_number = [](at::ScalarType type) {
    return !c10::isQIntType(type) && !c10::isBitsType(type) && type != at::ScalarType::Float4_e2m1fn_x2;
  };
  return from == to || (is_number(from) && is_number(to));
}

void pair_up(Fitting& fitting, const std::string& name, const at::Tensor& to, const State& value) {
  if (value.kind() != State::Kind::tensor) {
    fitting.different.push_back(in_quotes(name) + " is " + std::string(name_of(value.kind())));
    return;
  }
  const at::Tensor& from = value.tensor();
  // Before PyTorch 0.4, a scalar was a tensor of one element.
  const bool scalar = to.dim() == 0 && from.dim() == 1 && from.numel() == 1;
  if (from.layout() != at::kStrided || !converts(from.scalar_type(), to.scalar_type()))
    fitting.different.push_back(in_quotes(name) + " (state: " + from.toString() + ", module: " + to.toString() + ")");
  else if (!scalar && from.sizes() != to.sizes())
    fitting.different.push_back(in_quotes(name) + " (state: " + shape_text(from.sizes()) +
                                ", module: " + shape_text(to.sizes()) + ")");
  else fitting.pairs.emplace_back(to, scalar ? from.squeeze(0) : from);
}

Fitting fit(const NamedTensors& weights, const State::Map& state, const std::string& prefix) {
  std::map<std::string_view, const State*> values;
  bool counts_batches = false;
  for (const auto& [name, value] : state) {
    if (!name.starts_with(prefix)) continue;
    values[std::string_view(name).substr(prefix.size())] = &value;
    counts_batches |= name.ends_with(kBatchCount);
  }
  Fitting fitting;
  std::vector<std::pair<std::string, at::Tensor>> without;
  for (const auto& [name, tensor] : weights) {
    const auto found = values.find(name);
    if (found == values.end()) {
      without.emplace_back(name, tensor);
      continue;
    }
    pair_up(fitting, name, tensor, *found->second);
    values.erase(found);
  }
  for (const auto& [name, tensor] : without) {
    const bool tied = std::any_of(fitting.pairs.begin(), fitting.pairs.end(),
                                  [&](const auto& pair) { return checkpoint::are_tied(pair.first, tensor); });
    if (!tied && (counts_batches || !name.ends_with(kBatchCount))) fitting.report.missing_keys.push_back(name);
  }
  for (const auto& [name, value] : state)
    if (!name.starts_with(prefix) || values.contains(std::string_view(name).substr(prefix.size())))
      fitting.report.unexpected_keys.push_back(name);
  return fitting;
}

/// The prefix of all unexpected names, if without it they are the missing names.
std::string prefix_hint(const Fitting& fitting) {
  if (fitting.report.missing_keys.empty() || fitting.report.unexpected_keys.empty()) return "";
  const std::string& first = fitting.report.unexpected_keys.front();
  const std::string& wanted = fitting.report.missing_keys.front();
  if (first.size() <= wanted.size() || !first.ends_with(wanted)) return "";
  const std::string prefix = first.substr(0, first.size() - wanted.size());
  const bool all = std::all_of(fitting.report.unexpected_keys.begin(), fitting.report.unexpected_keys.end(),
                               [&](const auto& name) { return name.starts_with(prefix); });
  return all ? "; the state's names begin with " + in_quotes(prefix) + ": load with .prefix = \"" + shown(prefix) + "\""
             : "";
}

void append(NamedTensors& weights, const torch::nn::Module& module, const std::string& prefix) {
  for (const auto& entry : module.named_parameters(/*recurse=*/false))
    if (entry.value().defined()) weights.emplace_back(prefix + entry.key(), entry.value());
  for (const auto& entry : module.named_buffers(/*recurse=*/false))
    if (entry.value().defined()) weights.emplace_back(prefix + entry.key(), entry.value());
  for (const auto& child : module.named_children()) append(weights, *child.value(), prefix + child.key() + ".");
}

/// Size in bytes from which copies bypass the caches. Smaller values may be in the caches already, or be used from
/// there soon.
constexpr std::size_t kBytesWorthStreaming = std::size_t{256} << 10;

/// Whether a copy moves many bytes that the host has, without a change.
bool moves_bytes(const at::Tensor& to, const at::Tensor& from) {
  return to.nbytes() >= kBytesWorthStreaming && to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         checkpoint::is_plain(from);
}

bool takes_bytes(const at::Tensor& to, const at::Tensor& from) {
  return moves_bytes(to, from) && checkpoint::is_plain(to);
}

/// Whether a copy writes bytes that another one writes, or reads bytes that it writes itself.
bool overlap(std::vector<checkpoint::ByteCopy> copies) {
  std::sort(copies.begin(), copies.end(), [](const auto& a, const auto& b) { return a.to < b.to; });
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto& [to, from, bytes] = copies[i];
    if (i + 1 < copies.size() && to + bytes > copies[i + 1].to) return true;
    if (from < to + bytes && to < from + bytes) return true;
  }
  return false;
}

}  // namespace

State state_dict(const torch::nn::Module& module) {
  State::Map map;
  for (const auto& [name, tensor] : weights_of(module)) map.emplace_back(name, tensor.detach());
  return map;
}

StateDictFit fit_state_dict(const torch::nn::Module& module, const State& state, const LoadStateDictOptions& options,
                            std::string_view what) {
  Fitting fitting = fit(weights_of(module), state.map(), options.prefix);
  const auto problems =
      checkpoint::mismatch("state", "shapes or kinds differ", fitting.different, fitting.report, options.strict);
  if (!problems.empty())
    throw CheckpointError("MU228", std::string(what) + " does not fit the module, nothing was loaded" + problems +
                                       (options.strict ? prefix_hint(fitting) : ""));
  return fitting;
}

IncompatibleKeys load_state_dict(torch::nn::Module& module, const State& state, const LoadStateDictOptions& options) {
  const StateDictFit fitting = fit_state_dict(module, state, options);
  copy_values(fitting.pairs);
  return fitting.report;
}

void copy_values(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  const at::NoGradGuard no_grad;
  std::vector<checkpoint::ByteCopy> copies;
  for (const auto& [to, from] : pairs)
    if (takes_bytes(to, from))
      copies.push_back(
          {static_cast<char*>(to.mutable_data_ptr()), static_cast<const char*>(from.const_data_ptr()), to.nbytes()});
  const bool by_bytes = !overlap(copies);
  if (by_bytes) checkpoint::copy_bytes(copies);
  checkpoint::DeviceFiller filler;
  for (const auto& [to, from] : pairs) {
    if (checkpoint::is_on_device(to) && moves_bytes(to, from)) {  // through pinned memory
      filler(to, [place = static_cast<const char*>(from.const_data_ptr())](char* piece, std::size_t offset,
                                                                           std::size_t bytes) {
        checkpoint::copy_bytes({{piece, place + offset, bytes}});
      });
      continue;
    }
    if (!by_bytes || !takes_bytes(to, from)) at::Tensor(to).copy_(from);
    // As copy_() does: a graph that saved the tensor must detect the change. Inference tensors have no version.
    else if (!to.is_inference()) to.unsafeGetTensorImpl()->bump_version();
  }
}

NamedTensors weights_of(const torch::nn::Module& module) {
  NamedTensors weights;
  append(weights, module, "");
  return weights;
}

}  // namespace muster
