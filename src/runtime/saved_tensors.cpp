#include "runtime/saved_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/optim/flat_parameters.h"
#include "muster/parallel/managed_model.h"

namespace muster::runtime {
namespace {

std::vector<int64_t> order_of(const State& sliced) {
  std::vector<int64_t> order;
  for (const auto& dim : sliced.at("order").list()) order.push_back(dim.integer());
  return order;
}

bool is_sharded(const State& saved) { return saved.find("sliced") != nullptr; }

at::Tensor padded(const at::Tensor& mine, const TensorShard& shard) {
  const auto result = at::zeros({shard.padded}, mine.options());
  result.narrow(0, 0, mine.numel()).copy_(mine);
  return result;
}

/// Calls f(entry, key, shard or nullptr, parameter) for optimizer state that has one value per element of a parameter.
template <class F>
void each_elementwise(State& inner, const std::vector<at::Tensor>& parameters, const ShardMap& held, F&& f) {
  if (!inner.find("state")) return;
  for (auto& [number, entry] : inner.at("state").map()) {
    const auto& parameter = parameters.at(static_cast<size_t>(std::stoll(number)));
    const auto found = held.find(parameter.unsafeGetTensorImpl());
    for (auto& [key, value] : entry.map())
      if (key != "step" && (value.kind() == State::Kind::tensor || is_sharded(value)))
        f(number + "/" + key, value, found == held.end() ? nullptr : &found->second);
  }
}

std::string described(at::ScalarType dtype, at::IntArrayRef sizes) {
  return std::string(c10::toString(dtype)) + " " + shape_text(sizes);
}

bool has_name(const NamedTensors& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == name; });
}

void add_shards(const PreparedModel& model, ShardMap& held) {
  for (auto& shard : model.managed->shards()) held[shard.parameter.unsafeGetTensorImpl()] = shard;
}

ShardMap shards_of(const PreparedModel& model) {
  ShardMap held;
  add_shards(model, held);
  return held;
}

/// Copies values in through write_parameters(), which all code except optimizers must use.
std::function<void()> writing(const PreparedModel& model, std::vector<std::pair<at::Tensor, at::Tensor>> copies,
                              std::vector<at::Tensor> written) {
  return [copies = std::move(copies), managed = model.managed, written = std::move(written)] {
    optim::write_parameters(managed.get(), written, [&] { copy_values(copies); });
  };
}

}  // namespace

State add_shard(std::string name, const TensorShard& shard, const at::Tensor& values,
                std::vector<TensorShard>& shards) {
  const bool mine = shard.replica == 0;
  shards.push_back({name, shard.shape, mine ? shard.begin : 0, mine ? values : values.narrow(0, 0, 0)});
  return State::Map{{"sliced", std::move(name)}, {"order", State::List(shard.order.begin(), shard.order.end())}};
}

std::vector<int64_t> TensorReader::sizes(const State& saved) const {
  if (!is_sharded(saved)) return saved.tensor().sizes().vec();
  return shard::permuted(checkpoint_->sharded(saved.at("sliced").text()).shape, shard::inverse(order_of(saved)));
}

at::ScalarType TensorReader::dtype(const State& saved) const {
  return is_sharded(saved) ? checkpoint_->sharded(saved.at("sliced").text()).dtype : saved.tensor().scalar_type();
}

at::Tensor TensorReader::whole(const State& saved) const {
  if (!is_sharded(saved)) return saved.tensor();
  const auto& sliced = checkpoint_->sharded(saved.at("sliced").text());
  return checkpoint_->read(sliced.name, 0, sliced.numel()).view(sliced.shape).permute(shard::inverse(order_of(saved)));
}

at::Tensor TensorReader::shard(const State& saved, const TensorShard& shard) const {
  if (is_sharded(saved) && order_of(saved) == shard.order) {
    // Read straight to the device: a rank's part may not fit into the host's memory.
    auto values = at::empty({shard.local.numel()}, shard.local.options().dtype(dtype(saved)));
    checkpoint_->read(saved.at("sliced").text(), shard.begin, values);
    return values;
  }
  return shard::select(whole(saved), shard);
}

at::Tensor padded_shard(const at::Tensor& whole, const TensorShard& shard) {
  return padded(shard::select(whole, shard), shard);
}

State shard_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                            const std::string& path, std::vector<TensorShard>& shards) {
  each_elementwise(inner, parameters, held, [&](const std::string& name, State& value, const TensorShard* shard) {
    // Flat shards are padded: elements beyond the end of the parameter belong to no rank.
    if (shard) value = add_shard(path + "/" + name, *shard, value.tensor().narrow(0, 0, shard->local.numel()), shards);
  });
  return inner;
}

State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                             const TensorReader& reader) {
  each_elementwise(inner, parameters, held, [&](const std::string&, State& value, const TensorShard* shard) {
    if (!shard) {
      value = reader.whole(value);
      return;
    }
    value = padded(reader.shard(value, *shard), *shard);
  });
  return inner;
}

State save_weights_state(const PreparedModel& model, const std::string& path, std::vector<TensorShard>& shards) {
  State weights = State::Map{};
  std::unordered_map<const c10::TensorImpl*, State> cut;
  for (const auto& shard : model.managed->shards()) {
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
      weights.set(name, tensor.detach().to(model.managed->stored_dtype(tensor)));
  return weights;
}

std::function<void()> prepare_weights(const PreparedModel& model, const State& weights, bool strict,
                                      const TensorReader& reader) {
  std::string wrong;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<at::Tensor> written;
  const auto own = weights_of(*model.module);
  const auto held = shards_of(model);
  for (const auto& [name, tensor] : own) {
    const auto* found = weights.find(name);
    const auto shard = held.find(tensor.unsafeGetTensorImpl());
    const auto dtype = model.managed->stored_dtype(tensor);
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
  const auto held = shards_of(model);
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
  for (const auto& model : models) add_shards(*model, held);
  return held;
}

}  // namespace muster::runtime
