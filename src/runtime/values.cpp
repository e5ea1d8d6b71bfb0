#include "muster/runtime/detail/values.h"

#include <algorithm>
#include <limits>

#include <torch/types.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/managed_model.h"
#include "muster/runtime/padding.h"

namespace muster::runtime {

NoSyncScope::NoSyncScope(const std::vector<std::shared_ptr<parallel::ManagedModel>>& models, bool enabled) {
  if (!enabled) return;
  for (const auto& model : models) {
    before_.emplace_back(model, model->gradient_sync());
    model->set_gradient_sync(false);
  }
}

NoSyncScope::~NoSyncScope() {
  for (auto& [model, sync] : before_) model->set_gradient_sync(sync);
}

namespace {

std::string shape_bytes(const at::Tensor& tensor) {
  std::vector<int64_t> words{static_cast<int64_t>(tensor.scalar_type())};
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  return std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
}

std::vector<int64_t> words_of(const std::string& bytes) {
  std::vector<int64_t> words(bytes.size() / sizeof(int64_t));
  bytes.copy(reinterpret_cast<char*>(words.data()), bytes.size());
  return words;
}

/// The label of the leaf operation, for a message that precedes it.
comm::Communicator labelled(const comm::Communicator& group, const char* label) {
  auto operation_label = group.label();
  operation_label.text = label;
  return group.with_label(std::move(operation_label));
}

void require_shape(const std::vector<int64_t>& words, int source) {
  const bool good = !words.empty() && words[0] >= 0 && words[0] < static_cast<int64_t>(at::ScalarType::Undefined) &&
                    std::all_of(words.begin() + 1, words.end(), [](int64_t size) { return size >= 0; });
  if (!good)
    throw CommError(
        "MU050",
        formatted("rank {} announced a tensor of no possible shape: do all ranks run the same build?", source));
}

}  // namespace

at::Tensor gather_tensor(const comm::Communicator& group, const at::Tensor& tensor) {
  const auto rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  return at::cat(group.all_gather(rows.detach()).unbind(0));
}

at::Tensor stack_tensor(const comm::Communicator& group, const at::Tensor& tensor) {
  return group.all_gather(tensor.detach());
}

at::Tensor reduce_tensor(const comm::Communicator& group, const at::Tensor& tensor, std::string_view op) {
  const auto how = comm::parse_reduce_op(op);
  const bool grows = (how == comm::ReduceOp::sum || how == comm::ReduceOp::product) &&
                     at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  auto result = tensor.detach().to(grows ? at::kLong : tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  try {
    group.all_reduce(result, how);
  } catch (const CommError& error) {
    if (result.scalar_type() == tensor.scalar_type() || error.id() != "MU050") throw;
    throw CommError(error.id(), formatted("{} This rank gave a tensor of {}; sums and products of integers are made "
                                          "in int64.",
                                          error.message(), c10::getDtypeNames(tensor.scalar_type()).first));
  }
  return result;
}

at::Tensor broadcast_tensor(const comm::Communicator& group, const at::Tensor& tensor, int source) {
  const bool here = group.rank() == source;
  const auto words = words_of(
      labelled(group, "the shape of a tensor").broadcast_bytes(here ? shape_bytes(tensor) : std::string(), source));
  require_shape(words, source);
  const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(words[0]));
  auto result =
      here ? tensor.detach().clone(at::MemoryFormat::Contiguous)
           : at::empty(at::IntArrayRef(words).slice(1), tensor.defined() ? options.device(tensor.device()) : options);
  group.broadcast(result, source);
  return result;
}

at::Tensor pad_tensor(const comm::Communicator& group, const at::Tensor& tensor, const PadOptions& options) {
  const auto rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  if (options.dim >= rows.dim() || options.dim < -rows.dim())
    throw ConfigError("MU060",
                      formatted("pad_across_processes along dimension {}, which a tensor of shape [{}] does not have",
                                options.dim, c10::Join(", ", tensor.sizes())));
  const auto dim = at::maybe_wrap_dim(options.dim, rows.dim());
  auto longest = at::tensor(rows.size(dim), at::kLong);
  labelled(group, "the longest of a dimension").all_reduce(longest, comm::ReduceOp::max);
  const auto missing = longest.item<int64_t>() - rows.size(dim);
  if (missing == 0) return tensor;
  auto shape = rows.sizes().vec();
  shape[dim] = missing;
  const auto padding = at::full(shape, options.value, rows.options());
  return options.pad_first ? at::cat({padding, rows}, dim) : at::cat({rows, padding}, dim);
}

}  // namespace muster::runtime
