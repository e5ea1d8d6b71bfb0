#include "sharded_tensors.h"

#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace muster::runtime {
namespace {

std::vector<int64_t> order_of(const State& sliced) {
  std::vector<int64_t> order;
  for (const auto& dim : sliced.at("order").list()) order.push_back(dim.integer());
  return order;
}

bool is_sharded(const State& saved) { return saved.find("sliced") != nullptr; }

at::Tensor padded(const at::Tensor& mine, const parallel::ParameterShard& shard) {
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

}  // namespace

State add_shard(std::string name, const parallel::ParameterShard& shard, const at::Tensor& values,
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

at::Tensor TensorReader::shard(const State& saved, const parallel::ParameterShard& shard) const {
  if (is_sharded(saved) && order_of(saved) == shard.order) {
    // Read straight to the device: a rank's part may not fit into the host's memory.
    auto values = at::empty({shard.local.numel()}, shard.local.options().dtype(dtype(saved)));
    checkpoint_->read(saved.at("sliced").text(), shard.begin, values);
    return values;
  }
  return shard::select(whole(saved), shard);
}

at::Tensor padded_shard(const at::Tensor& whole, const parallel::ParameterShard& shard) {
  return padded(shard::select(whole, shard), shard);
}

State shard_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                            const std::string& path, std::vector<TensorShard>& shards) {
  each_elementwise(
      inner, parameters, held, [&](const std::string& name, State& value, const parallel::ParameterShard* shard) {
        // Flat shards are padded: elements beyond the end of the parameter belong to no rank.
        if (shard)
          value = add_shard(path + "/" + name, *shard, value.tensor().narrow(0, 0, shard->local.numel()), shards);
      });
  return inner;
}

State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const ShardMap& held,
                             const TensorReader& reader) {
  each_elementwise(inner, parameters, held,
                   [&](const std::string&, State& value, const parallel::ParameterShard* shard) {
                     if (!shard) {
                       value = reader.whole(value);
                       return;
                     }
                     value = padded(reader.shard(value, *shard), *shard);
                   });
  return inner;
}

}  // namespace muster::runtime
