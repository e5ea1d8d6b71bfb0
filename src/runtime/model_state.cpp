#include "model_state.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/listing.h"
#include "base/shown.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/optim/flat_parameters.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"

namespace muster::runtime {
namespace {

std::string described(at::ScalarType dtype, at::IntArrayRef sizes) {
  return std::string(c10::toString(dtype)) + " " + shape_text(sizes);
}

bool has_name(const NamedTensors& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == name; });
}

/// Copies values in through write_parameters(), which all code except optimizers must use.
std::function<void()> writing(const PreparedModel& model, std::vector<std::pair<at::Tensor, at::Tensor>> copies,
                              std::vector<at::Tensor> written) {
  return [copies = std::move(copies), managed = model.managed, written = std::move(written)] {
    optim::write_parameters(managed.get(), written, [&] { copy_values(copies); });
  };
}

}  // namespace

State save_weights_state(const PreparedModel& model, const std::string& path, std::vector<TensorShard>& shards) {
  State weights = State::Map{};
  std::unordered_map<const c10::TensorImpl*, State> cut;
  for (const auto& shard : parallel::shards_of(*model.managed)) {
    auto& saved = cut[shard.parameter.unsafeGetTensorImpl()];
    if (saved.empty()) saved = add_shard(path + "/" + shard.name, shard, shard.local, shards);
    weights.set(shard.name, saved);
  }
  if (cut.empty()) {
    State::Map whole;
    for (auto& [name, tensor] : model.managed->full_state(/*main_only=*/true))
      whole.emplace_back(name, tensor.detach());
    return whole;
  }
  for (auto& [name, tensor] : weights_of(*model.module))
    if (!cut.contains(tensor.unsafeGetTensorImpl()))
      weights.set(name, tensor.detach().to(parallel::stored_dtype(*model.managed, tensor)));
  return weights;
}

std::function<void()> prepare_weights(const PreparedModel& model, const State& weights, bool strict,
                                      const TensorReader& reader) {
  std::string wrong;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<at::Tensor> written;
  const auto own = weights_of(*model.module);
  ShardMap held;
  for (auto& shard : parallel::shards_of(*model.managed)) held[shard.parameter.unsafeGetTensorImpl()] = shard;
  for (const auto& [name, tensor] : own) {
    const auto* found = weights.find(name);
    const auto shard = held.find(tensor.unsafeGetTensorImpl());
    const auto dtype = parallel::stored_dtype(*model.managed, tensor);
    if (!found) wrong += strict ? "\n  " + shown(name) + " is not in the checkpoint" : "";
    else if (reader.sizes(*found) != tensor.sizes().vec() || reader.dtype(*found) != dtype)
      wrong += "\n  " + shown(name) + ": " + described(reader.dtype(*found), reader.sizes(*found)) +
               " in the checkpoint, " + described(dtype, tensor.sizes()) + " here";
    else if (wrong.empty()) {
      copies.emplace_back(shard == held.end() ? tensor : shard->second.local,
                          shard == held.end() ? reader.whole(*found) : reader.shard(*found, shard->second));
      written.push_back(tensor);
    }
  }
  for (const auto& [name, tensor] : weights.map())
    if (strict && !has_name(own, name)) wrong += "\n  " + shown(name) + " is not in the model";
  if (!wrong.empty())
    throw CheckpointError(
        "MU240",
        formatted("the weights of model {} do not fit the checkpoint:{}\nbuild the model with the sizes it was saved "
                  "with, or pass over names that only one side has with .strict = false",
                  model.module->name(), wrong));
  return writing(model, std::move(copies), std::move(written));
}

std::function<void()> prepare_values(const PreparedModel& model,
                                     const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  ShardMap held;
  for (auto& shard : parallel::shards_of(*model.managed)) held[shard.parameter.unsafeGetTensorImpl()] = shard;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<at::Tensor> written;
  for (const auto& [tensor, value] : pairs) {
    const auto shard = held.find(tensor.unsafeGetTensorImpl());
    if (shard == held.end()) copies.emplace_back(tensor, value);
    else copies.emplace_back(shard->second.local, shard::select(value, shard->second));
    written.push_back(tensor);
  }
  return writing(model, std::move(copies), std::move(written));
}

ShardMap shards_of(const std::vector<std::shared_ptr<PreparedModel>>& models) {
  ShardMap held;
  for (const auto& model : models)
    for (auto& shard : parallel::shards_of(*model->managed)) held[shard.parameter.unsafeGetTensorImpl()] = shard;
  return held;
}

}  // namespace muster::runtime
