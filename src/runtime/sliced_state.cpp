#include "sliced_state.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include <ATen/ops/zeros.h>

namespace muster::runtime {
namespace {

/// Dimensions from the outermost in memory to the innermost.
std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

std::vector<int64_t> permuted(at::IntArrayRef sizes, const std::vector<int64_t>& order) {
  std::vector<int64_t> result;
  for (const auto dim : order) result.push_back(sizes[static_cast<size_t>(dim)]);
  return result;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) result.at(static_cast<size_t>(order[i])) = static_cast<int64_t>(i);
  return result;
}

std::vector<int64_t> order_of(const State& sliced) {
  std::vector<int64_t> order;
  for (const auto& dim : sliced.at("order").list()) order.push_back(dim.integer());
  return order;
}

bool is_sliced(const State& saved) { return saved.find("sliced") != nullptr; }

at::Tensor padded(const at::Tensor& mine, const parallel::ParameterPart& part) {
  const auto result = at::zeros({part.padded}, mine.options());
  result.narrow(0, 0, mine.numel()).copy_(mine);
  return result;
}

/// Calls f(entry, key, part or nullptr, parameter) for what an optimizer keeps of each element of a parameter.
template <class F>
void each_elementwise(State& inner, const std::vector<at::Tensor>& parameters, const PartMap& parts, F&& f) {
  if (!inner.find("state")) return;
  for (auto& [number, entry] : inner.at("state").map()) {
    const auto& parameter = parameters.at(static_cast<size_t>(std::stoll(number)));
    const auto found = parts.find(parameter.unsafeGetTensorImpl());
    for (auto& [key, value] : entry.map())
      if (key != "step" && (value.kind() == State::Kind::tensor || is_sliced(value)))
        f(number + "/" + key, value, found == parts.end() ? nullptr : &found->second);
  }
}

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const parallel::ParameterPart& part) {
  return whole.permute(memory_order(part.parameter)).reshape(-1).narrow(0, part.begin, part.values.numel());
}

State add_slice(std::string name, const parallel::ParameterPart& part, const at::Tensor& values,
                std::vector<Slice>& slices) {
  const auto order = memory_order(part.parameter);
  const bool mine = part.replica == 0;
  slices.push_back(
      {name, permuted(part.parameter.sizes(), order), mine ? part.begin : 0, mine ? values : values.narrow(0, 0, 0)});
  return State::Map{{"sliced", std::move(name)}, {"order", State::List(order.begin(), order.end())}};
}

std::vector<int64_t> TensorReader::sizes(const State& saved) const {
  if (!is_sliced(saved)) return saved.tensor().sizes().vec();
  return permuted(checkpoint_->sliced(saved.at("sliced").text()).shape, inverse(order_of(saved)));
}

at::ScalarType TensorReader::dtype(const State& saved) const {
  return is_sliced(saved) ? checkpoint_->sliced(saved.at("sliced").text()).dtype : saved.tensor().scalar_type();
}

at::Tensor TensorReader::whole(const State& saved) const {
  if (!is_sliced(saved)) return saved.tensor();
  const auto& sliced = checkpoint_->sliced(saved.at("sliced").text());
  return checkpoint_->read(sliced.name, 0, sliced.numel()).view(sliced.shape).permute(inverse(order_of(saved)));
}

at::Tensor TensorReader::part(const State& saved, const parallel::ParameterPart& part) const {
  const auto order = memory_order(part.parameter);
  const auto count = part.values.numel();
  if (is_sliced(saved) && order_of(saved) == order)
    return checkpoint_->read(saved.at("sliced").text(), part.begin, part.begin + count);
  return part_of(whole(saved), part);
}

at::Tensor padded_part(const at::Tensor& whole, const parallel::ParameterPart& part) {
  return padded(part_of(whole, part), part);
}

State cut_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const PartMap& parts,
                          const std::string& path, std::vector<Slice>& slices) {
  each_elementwise(
      inner, parameters, parts, [&](const std::string& name, State& value, const parallel::ParameterPart* part) {
        // Flat parts are padded; what lies behind the parameter's end is nobody's.
        if (part)
          value = add_slice(path + "/" + name, *part, value.tensor().narrow(0, 0, part->values.numel()), slices);
      });
  return inner;
}

State joined_optimizer_state(State inner, const std::vector<at::Tensor>& parameters, const PartMap& parts,
                             const TensorReader& reader) {
  each_elementwise(inner, parameters, parts,
                   [&](const std::string&, State& value, const parallel::ParameterPart* part) {
                     if (!part) {
                       value = reader.whole(value);
                       return;
                     }
                     value = padded(reader.part(value, *part), *part);
                   });
  return inner;
}

}  // namespace muster::runtime
