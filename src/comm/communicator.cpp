#include "muster/comm/communicator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "comm/collectives.h"
#include "comm/group.h"
#include "comm/header.h"
#include "device/device.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "operation.h"

namespace muster::comm {

constexpr std::array kDtypes{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                             at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

bool takes_dtype(at::ScalarType dtype) { return std::ranges::find(kDtypes, dtype) != kDtypes.end(); }

namespace {

void check_tensor(const Group& group, const at::Tensor& tensor, std::string_view operation) {
  if (!tensor.defined()) throw ConfigError("MU060", formatted("{} got an undefined tensor", operation));
  if (!tensor.is_cpu() && !device::is_accelerator(tensor.device().type()))
    throw ConfigError("MU056", formatted("{}: group {} takes tensors in host memory and on the accelerator, but this "
                                         "one is on {}",
                                         operation, group.identity().name, tensor.device().str()));
  if (tensor.layout() != at::kStrided)
    throw ConfigError("MU056", formatted("{} takes dense tensors; call to_dense() first", operation));
  if (!takes_dtype(tensor.scalar_type()))
    throw ConfigError("MU056",
                      formatted("{} does not take tensors of {}; it takes float64/32/16, bfloat16, int64/32/16/8, "
                                "uint8 and bool",
                                operation, name_of(tensor.scalar_type())));
  if (tensor.dim() > kMaxDims)
    throw ConfigError("MU056", formatted("{} takes at most {} dimensions", operation, kMaxDims));
}

void check_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view operation) {
  if (op != ReduceOp::mean || at::isFloatingType(tensor.scalar_type())) return;
  throw ConfigError("MU054", formatted("{}: the mean of {} is not defined; convert to a floating type, or take the sum",
                                       operation, name_of(tensor.scalar_type())));
}

void check_rank(const Group& group, int rank, std::string_view operation) {
  if (rank >= 0 && rank < group.size()) return;
  throw ConfigError("MU060", formatted("{}: there is no rank {} in group {} of {} ranks", operation, rank,
                                       group.identity().name, group.size()));
}

void check_one_device(const at::Tensor& one, const at::Tensor& other, std::string_view operation) {
  if (one.device() == other.device()) return;
  throw ConfigError("MU056", formatted("{} takes tensors of one device, but one is on {} and another on {}", operation,
                                       one.device().str(), other.device().str()));
}

bool in_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  // Unchecked: data_ptr() throws an error of LibTorch if the memory of a sharded parameter is freed.
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() !=
         nullptr;
}

void check_memory(const at::Tensor& tensor, std::string_view operation) {
  if (in_memory(tensor)) return;
  throw UsageError("MU066", formatted("{} works in place, and the values of this tensor are not in memory now, as may "
                                      "be those of a parameter that is "
                                      "sharded over ranks; give it a copy (clone())",
                                      operation));
}

/// Whether the values lie in memory one after another, as they are. LibTorch may also negate values as it reads them,
/// as it does with the imaginary part of a conjugate.
bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_neg(); }

at::Tensor plain(const at::Tensor& tensor) {
  return tensor.is_neg() ? tensor.resolve_neg().contiguous() : tensor.contiguous();
}

void check_contiguous(const at::Tensor& tensor, std::string_view operation) {
  check_memory(tensor, operation);
  if (is_plain(tensor)) return;
  throw ConfigError("MU060", formatted("{} wants contiguous tensors{}, since it works in place after it returned",
                                       operation, tensor.is_neg() ? " that are not negated as they are read" : ""));
}

/// A contiguous tensor whose values can be read through a pointer. If only an operator makes values available, as for a
/// parameter that is being gathered, an operator copies them.
at::Tensor readable(const at::Tensor& tensor) {
  return in_memory(tensor) ? plain(tensor) : tensor.clone(at::MemoryFormat::Contiguous);
}

/// A rank's piece may overlap the whole tensor only at the rank's own position in it. Anywhere else, one rank would
/// write what another rank is still reading.
void check_overlap(const Group& group, const at::Tensor& whole, const at::Tensor& piece, std::string_view operation) {
  if (piece.numel() == 0 || !in_memory(whole) || !in_memory(piece) || !is_plain(whole) || !is_plain(piece)) return;
  const auto* begin = static_cast<const std::byte*>(whole.const_data_ptr());
  const auto* at = static_cast<const std::byte*>(piece.const_data_ptr());
  if (std::less_equal<>()(begin + whole.nbytes(), at) || std::less_equal<>()(at + piece.nbytes(), begin)) return;
  if (at == begin + piece.nbytes() * static_cast<std::size_t>(group.rank())) return;
  throw ConfigError("MU060", formatted("{}: the smaller tensor lies in the larger one, but is not piece {}, which "
                                       "belongs to this rank; give it a copy (clone())",
                                       operation, group.rank()));
}

/// Checks that both have one dtype, and that `whole` has as many elements as the pieces of all ranks together.
void check_pieces(const Group& group, const at::Tensor& whole, const at::Tensor& piece, std::string_view operation) {
  check_tensor(group, whole, operation);
  check_tensor(group, piece, operation);
  check_one_device(whole, piece, operation);
  if (whole.scalar_type() != piece.scalar_type() || whole.numel() != piece.numel() * group.size())
    throw ConfigError(
        "MU060", formatted("{}: {} elements of {} on one side and {} of {} on the other do not fit {} ranks", operation,
                           whole.numel(), name_of(whole.scalar_type()), piece.numel(), name_of(piece.scalar_type()),
                           group.size()));
  check_overlap(group, whole, piece, operation);
}

/// A contiguous tensor of that shape with the dtype and device of `like`.
at::Tensor empty_of(at::IntArrayRef shape, const at::Tensor& like) {
  // Bypasses the dispatcher, which takes longer than a small gather.
  if (like.is_cpu()) return at::Tensor(at::detail::empty_cpu(shape, like.scalar_type()));
  return at::empty(shape, like.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous));
}

/// Runs an operation that fills `tensor` from `in`, if it is defined, through contiguous copies if necessary.
void run_into(const at::Tensor& tensor, Group& group, Operation operation, std::string_view name,
              const at::Tensor& in = {}) {
  at::NoGradGuard no_grad;
  check_memory(tensor, name);
  if (in.defined()) operation.in = readable(in);
  operation.out = plain(tensor);
  group.run(operation);
  if (!is_plain(tensor)) tensor.detach().copy_(operation.out);
}

void check_parts(const Group& group, const std::vector<at::Tensor>& parts, std::string_view operation) {
  if (static_cast<int>(parts.size()) != group.size())
    throw ConfigError(
        "MU060", formatted("{} takes one part per rank, {} in all, not {}", operation, group.size(), parts.size()));
  for (const auto& part : parts) {
    check_tensor(group, part, operation);
    check_one_device(parts[0], part, operation);
  }
}

at::Tensor bytes_tensor(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions().dtype(at::kByte));
}

std::string to_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
}

std::vector<std::string> to_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> all;
  for (const auto& tensor : tensors) all.push_back(to_bytes(tensor));
  return all;
}

std::shared_ptr<Group> world_of_one() {
  return std::make_shared<Group>(GroupIdentity{.starts_inline = true}, make_local());
}

}  // namespace

Communicator::Communicator() : group_(world_of_one()) {}
Communicator::Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}
Communicator::Communicator(std::shared_ptr<Group> group, OperationLabel label)
    : group_(std::move(group)), label_(std::move(label)) {}

int Communicator::rank() const noexcept { return group_->rank(); }
int Communicator::size() const noexcept { return group_->size(); }
std::string_view Communicator::backend() const noexcept { return group_->identity().backend; }
std::string_view Communicator::backend_reason() const noexcept { return group_->identity().backend_reason; }
const std::string& Communicator::name() const noexcept { return group_->identity().name; }
std::chrono::milliseconds Communicator::timeout() const noexcept { return group_->identity().timeout; }

Communicator Communicator::with_label(OperationLabel label) const { return Communicator(group_, std::move(label)); }

Communicator Communicator::internal(std::string label, int64_t gradient_step) const {
  return with_label({.gradient_step = gradient_step, .text = std::move(label), .source = Source::library});
}

void Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_tensor(*group_, tensor, "all_reduce");
  check_reduce(tensor, op, "all_reduce");
  run_into(tensor, *group_, {.kind = OperationKind::all_reduce, .label = label_, .reduce = op}, "all_reduce");
}

Work Communicator::start_all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_tensor(*group_, tensor, "all_reduce");
  check_reduce(tensor, op, "all_reduce");
  check_contiguous(tensor, "start_all_reduce");
  return Work(group_->start({.kind = OperationKind::all_reduce, .label = label_, .reduce = op, .out = tensor}));
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor) const {
  check_tensor(*group_, tensor, "all_gather");
  at::NoGradGuard no_grad;
  at::DimVector shape{size()};
  shape.append(tensor.sizes().begin(), tensor.sizes().end());
  at::Tensor out = empty_of(shape, tensor);
  Operation operation{.kind = OperationKind::all_gather, .label = label_, .in = readable(tensor), .out = out};
  group_->run(operation);
  return out;
}

std::vector<at::Tensor> Communicator::all_gatherv(const at::Tensor& tensor) const {
  check_tensor(*group_, tensor, "all_gatherv");
  at::NoGradGuard no_grad;
  Operation operation{.kind = OperationKind::all_gatherv, .label = label_, .in = readable(tensor).detach()};
  group_->run(operation);
  return std::move(operation.results);
}

void Communicator::all_gather_into(const at::Tensor& out, const at::Tensor& in) const {
  check_pieces(*group_, out, in, "all_gather_into");
  run_into(out, *group_, {.kind = OperationKind::all_gather, .label = label_}, "all_gather_into", in);
}

Work Communicator::start_all_gather_into(const at::Tensor& out, const at::Tensor& in) const {
  check_pieces(*group_, out, in, "all_gather_into");
  check_contiguous(out, "start_all_gather_into");
  check_contiguous(in, "start_all_gather_into");
  return Work(group_->start({.kind = OperationKind::all_gather, .label = label_, .in = in, .out = out}));
}

void Communicator::reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op) const {
  check_pieces(*group_, in, out, "reduce_scatter");
  check_reduce(in, op, "reduce_scatter");
  run_into(out, *group_, {.kind = OperationKind::reduce_scatter, .label = label_, .reduce = op}, "reduce_scatter", in);
}

Work Communicator::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op) const {
  check_pieces(*group_, in, out, "reduce_scatter");
  check_reduce(in, op, "reduce_scatter");
  check_contiguous(out, "start_reduce_scatter");
  check_contiguous(in, "start_reduce_scatter");
  return Work(
      group_->start({.kind = OperationKind::reduce_scatter, .label = label_, .reduce = op, .in = in, .out = out}));
}

void Communicator::broadcast(const at::Tensor& tensor, int root) const {
  check_tensor(*group_, tensor, "broadcast");
  check_rank(*group_, root, "broadcast");
  run_into(tensor, *group_, {.kind = OperationKind::broadcast, .label = label_, .root = root}, "broadcast");
}

Work Communicator::start_broadcast(const at::Tensor& tensor, int root) const {
  check_tensor(*group_, tensor, "broadcast");
  check_rank(*group_, root, "broadcast");
  check_contiguous(tensor, "start_broadcast");
  return Work(group_->start({.kind = OperationKind::broadcast, .label = label_, .root = root, .out = tensor}));
}

void Communicator::reduce(const at::Tensor& tensor, int root, ReduceOp op) const {
  check_tensor(*group_, tensor, "reduce");
  check_rank(*group_, root, "reduce");
  check_reduce(tensor, op, "reduce");
  run_into(tensor, *group_, {.kind = OperationKind::reduce, .label = label_, .reduce = op, .root = root}, "reduce");
}

std::vector<at::Tensor> Communicator::gather(const at::Tensor& tensor, int root) const {
  check_tensor(*group_, tensor, "gather");
  check_rank(*group_, root, "gather");
  at::NoGradGuard no_grad;
  Operation operation{.kind = OperationKind::gather, .label = label_, .root = root, .in = readable(tensor).detach()};
  group_->run(operation);
  return rank() == root ? std::move(operation.results) : std::vector<at::Tensor>();
}

at::Tensor Communicator::scatter(const std::vector<at::Tensor>& parts, int root) const {
  check_rank(*group_, root, "scatter");
  at::NoGradGuard no_grad;
  Operation operation{.kind = OperationKind::scatter, .label = label_, .root = root};
  if (rank() == root) {
    check_parts(*group_, parts, "scatter");
    for (const auto& part : parts) operation.parts.push_back(readable(part).detach());
  }
  group_->run(operation);
  return operation.results.at(0);
}

std::vector<at::Tensor> Communicator::all_to_all(const std::vector<at::Tensor>& parts) const {
  check_parts(*group_, parts, "all_to_all");
  at::NoGradGuard no_grad;
  Operation operation{.kind = OperationKind::all_to_all, .label = label_};
  for (const auto& part : parts) {
    if (part.scalar_type() != parts[0].scalar_type()) throw ConfigError("MU060", "all_to_all takes parts of one dtype");
    operation.parts.push_back(readable(part).detach());
  }
  group_->run(operation);
  return std::move(operation.results);
}

void Communicator::barrier() const {
  Operation operation{.kind = OperationKind::barrier, .label = label_};
  group_->run(operation);
}

std::string Communicator::broadcast_bytes(std::string bytes, int root) const {
  check_rank(*group_, root, "broadcast_bytes");
  Operation operation{.kind = OperationKind::broadcast_bytes, .label = label_, .root = root};
  if (rank() == root) operation.in = bytes_tensor(bytes);
  group_->run(operation);
  return rank() == root ? std::move(bytes) : to_bytes(operation.results[root]);
}

std::vector<std::string> Communicator::all_gather_bytes(const std::string& bytes) const {
  Operation operation{.kind = OperationKind::all_gather_bytes, .label = label_, .in = bytes_tensor(bytes)};
  group_->run(operation);
  return to_bytes(operation.results);
}

std::vector<std::string> Communicator::gather_bytes(const std::string& bytes, int root) const {
  check_rank(*group_, root, "gather_bytes");
  Operation operation{.kind = OperationKind::gather_bytes, .label = label_, .root = root, .in = bytes_tensor(bytes)};
  group_->run(operation);
  return rank() == root ? to_bytes(operation.results) : std::vector<std::string>();
}

Communicator Communicator::subgroup(const std::vector<int>& ranks) const {
  if (ranks.empty()) throw ConfigError("MU060", "subgroup takes at least one rank");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    check_rank(*group_, ranks[i], "subgroup");
    if (i > 0 && ranks[i] <= ranks[i - 1])
      throw ConfigError("MU060", "subgroup takes ranks in ascending order, each once");
  }
  auto group = group_->subgroup(ranks, label_);
  return group ? Communicator(std::move(group)) : Communicator();
}

Communicator Communicator::duplicate() const {
  if (size() == 1) return {};
  return subgroup(all_ranks(size()));
}

void Communicator::send(const at::Tensor& tensor, int to) const {
  check_tensor(*group_, tensor, "send");
  check_rank(*group_, to, "send");
  if (to == rank()) throw ConfigError("MU060", formatted("send: rank {} cannot send to itself", to));
  at::NoGradGuard no_grad;
  Operation operation{.kind = OperationKind::send, .label = label_, .root = to, .in = readable(tensor)};
  group_->run(operation);
}

void Communicator::recv(const at::Tensor& tensor, int from) const {
  check_tensor(*group_, tensor, "recv");
  check_rank(*group_, from, "recv");
  if (from == rank()) throw ConfigError("MU060", formatted("recv: rank {} cannot receive from itself", from));
  run_into(tensor, *group_, {.kind = OperationKind::recv, .label = label_, .root = from}, "recv");
}

void Communicator::abort(const std::string& cause) const { group_->abort(cause); }
void Communicator::observe(Observer observer) const { group_->observe(std::move(observer)); }

}  // namespace muster::comm
