#include "muster/runtime/detail/values.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/types.h>

#include "base/text.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/padding.h"
#include "muster/runtime/split.h"

namespace muster::runtime {
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

/// The group for messages with this text in their label, such as one that precedes the operation of a leaf.
comm::Communicator labelled(const comm::Communicator& group, std::string text) {
  auto label = group.label();
  label.text = std::move(text);
  return group.with_label(std::move(label));
}

void require_shape(const std::vector<int64_t>& words, int source) {
  const bool good = !words.empty() && words[0] >= 0 && words[0] < static_cast<int64_t>(at::ScalarType::Undefined) &&
                    std::all_of(words.begin() + 1, words.end(), [](int64_t size) { return size >= 0; });
  if (!good)
    throw CommError(
        "MU050",
        formatted("rank {} announced a tensor of no possible shape: do all ranks run the same build?", source));
}

/// The group for messages that carry values as bytes.
comm::Communicator for_objects(const comm::Communicator& group) {
  return group.label().text.empty() ? labelled(group, "objects") : group;
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

std::vector<at::Tensor> gather_packed(const comm::Communicator& group, const at::Tensor& packed) {
  comm::require_same_device_operations(group);  // the packed values may come from device operations
  return for_objects(group).all_gatherv(packed);
}

at::Tensor broadcast_packed(const comm::Communicator& group, const at::Tensor& packed, int source) {
  const bool here = group.rank() == source;
  auto label = for_objects(group).label();
  label.tensor_count = 2;  // the size, then the bytes
  const auto size = at::scalar_tensor(here ? packed.numel() : 0, at::kLong);
  group.with_label(label).broadcast(size, source);
  if (size.item<int64_t>() < 0)
    throw CommError("MU050", formatted("rank {} announced an object of {} bytes: do all ranks run the same build?",
                                       source, size.item<int64_t>()));
  const auto bytes = here ? packed : at::empty({size.item<int64_t>()}, at::kByte);
  label.tensor_index = 1;
  group.with_label(label).broadcast(bytes, source);
  return bytes;
}

SplitPart split_part(int64_t length, int rank, int world, const SplitOptions& options) {
  const int64_t each = length / world, more = length % world;
  SplitPart part{rank * each + std::min<int64_t>(rank, more), each + (rank < more), 0};
  if (options.apply_padding && length > 0) part.repeated = each + (more > 0) - part.count;
  return part;
}

at::Tensor split_tensor(const at::Tensor& tensor, const SplitPart& part) {
  const auto own = tensor.narrow(0, part.begin, part.count);
  if (part.repeated == 0) return own;
  auto shape = tensor.sizes().vec();
  shape[0] = part.repeated;
  return at::cat({own, tensor.narrow(0, tensor.size(0) - 1, 1).expand(shape)});
}

void check_length(std::optional<int64_t>& known, int64_t length) {
  if (known && *known != length)
    throw UsageError("MU184", "split_between_processes was given lists of " + std::to_string(*known) + " and of " +
                                  std::to_string(length) + " elements; what is split together must be equally long");
  known = length;
}

namespace {

/// Number of places that an error names.
constexpr std::size_t kShown = 8;

std::string place_of(const tree::Leaf& leaf) {
  return (leaf.path.empty() ? "itself" : leaf.path) + (leaf.defined ? "" : " undefined");
}

/// All places, each terminated by a zero.
std::string text_of(const std::vector<tree::Leaf>& leaves) {
  std::string text;
  for (const auto& leaf : leaves) text += place_of(leaf) + '\0';
  return text;
}

/// "2 tensors ([0], [1])". Keys may hold any text, so terminal control characters are escaped.
std::string in_words(const std::string& text) {
  auto places = split_text(text, '\0');
  const auto count = counted(std::ssize(places), "tensor");
  if (places.empty()) return count;
  const bool more = places.size() > kShown;
  places.resize(std::min(places.size(), kShown));
  return formatted("{} ({}{})", count, joined(places, [](const std::string& place) { return shown(place); }),
                   more ? ", ..." : "");
}

void require_equal_places(const comm::Communicator& group, std::string_view operation,
                          const std::vector<tree::Leaf>& leaves) {
  const auto comparing = labelled(group, "comparing the values of " + std::string(operation));
  if (const auto found = comm::first_difference(comparing.all_gather_bytes(text_of(leaves))))
    throw UsageError(
        "MU065", formatted("{} was given values with tensors in different places: rank 0 has {} and rank {} has {}. "
                           "Give every rank as many, or send the values as objects (gather_object, broadcast_object)",
                           operation, in_words(found->first), found->rank, in_words(found->other)));
}

/// Without a comparison of the values first, the other ranks have already begun with the first tensor: a mismatched
/// barrier ends their operation with an error that quotes its label. If all ranks refuse, their barriers match.
[[noreturn]] void refuse_undefined(const comm::Communicator& group, std::string_view operation, const tree::Leaf& leaf,
                                   bool compared) {
  const auto what = formatted("{} of an undefined tensor{}", operation, leaf.path.empty() ? "" : " at " + leaf.path);
  if (!compared && group.size() > 1) try {
      labelled(group, "refusing the " + what).barrier();
    } catch (const CommError&) {  // the other ranks have their error now
    }
  throw UsageError("MU177",
                   formatted("{} on rank {}; give it a value, or make it an optional that is empty on every rank", what,
                             group.rank()));
}

}  // namespace

LeafOperations::LeafOperations(const comm::Communicator& group, std::string_view operation,
                               std::vector<tree::Leaf> leaves, bool varies, int source)
    : group_(group), label_(group.label()) {
  comm::require_same_device_operations(group);  // the values may come from device operations
  if (source >= 0 && source != group.rank())
    for (auto& leaf : leaves) leaf.defined = true;
  if (varies && group.size() > 1) require_equal_places(group, operation, leaves);
  const auto missing = std::find_if(leaves.begin(), leaves.end(), [](const auto& leaf) { return !leaf.defined; });
  if (missing != leaves.end()) refuse_undefined(group, operation, *missing, varies);
  label_.tensor_index = -1;
  label_.tensor_count = static_cast<int32_t>(leaves.size());
}

const comm::Communicator& LeafOperations::next() {
  ++label_.tensor_index;
  return current_ = group_.with_label(label_);
}

void LeafOperations::finish() const { comm::require_same_device_operations(group_); }

}  // namespace muster::runtime
