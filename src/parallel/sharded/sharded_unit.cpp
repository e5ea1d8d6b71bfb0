#include "parallel/sharded/sharded_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "muster/base/error.h"

namespace muster::parallel {
namespace {

std::vector<int64_t> numels(const UnitPlan& plan) {
  std::vector<int64_t> sizes;
  for (const auto& parameter : plan.parameters) sizes.push_back(parameter.tensor.numel());
  return sizes;
}

}  // namespace

ShardedUnit::ShardedUnit(UnitPlan plan, const ShardGroups& groups, const ShardSettings& settings,
                         const ShardStreams& streams, BufferPool& buffers, OneCopy* one_copy,
                         const std::weak_ptr<hook::StorageWatcher>& watcher, int64_t owner_id)
    : plan_(std::move(plan)), groups_(groups), settings_(settings), streams_(streams), buffers_(buffers),
      layout_(numels(plan_), groups.shards.size(),
              one_copy ? one_copy->part_multiple(c10::elementSize(dtype_of_use(plan_, settings))) : 1),
      values_(plan_, layout_, groups, settings, streams, buffers, one_copy, watcher, owner_id),
      placeholder_memory_(watcher, ~owner_id, "the gradients of unit '" + plan_.name + "'", values_.full_bytes(),
                          plan_.parameters.front().tensor.device()),
      trainable_(size()) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < size(); ++i) {
    trainable_[i] = parameter(i).tensor.requires_grad();
    elements_ += parameter(i).tensor.numel();
  }
  if (trainable_count() > 0) allocate_gradients(/*on_all_ranks=*/true);
  for (size_t i = 0; i < size(); ++i) {
    const auto& tensor = parameter(i).tensor;
    const auto mine = layout_.part(i, groups_.shards.rank());
    locals_.push_back({values_.shard().narrow(0, mine.begin, mine.length),
                       gradients_ ? gradients_->part(i) : at::empty({0}, values_.shard().options()), true});
    placeholders_.push_back(new_placeholder(i, tensor));
    // The user's tensor itself becomes a view of watched memory, with its dispatch key, so every handle of it is seen.
    tensor.set_data(values_.view(i));
    tensor.mutable_grad().reset();
  }
}

void ShardedUnit::allocate_gradients(bool on_all_ranks) {
  if (gradients_) return;
  at::NoGradGuard no_grad;
  const auto reduce = settings_.reduce_dtype.value_or(values_.shard().scalar_type());
  gradients_ = std::make_unique<UnitGradients>(
      layout_, numels(plan_), groups_,
      UnitGradients::Options{values_.shard().options(), reduce, settings_.stage == ShardStage::optimizer,
                             settings_.divisor_before(reduce, groups_.size()), on_all_ranks, streams_.reduce},
      buffers_);
  for (size_t i = 0; i < locals_.size(); ++i) locals_[i].gradient = gradients_->part(i);
}

bool ShardedUnit::covers(const ShardedUnit& other) const {
  return plan_.root || name() == other.name() || other.name().starts_with(name() + ".");
}

TensorShard ShardedUnit::shard(size_t i, std::string name) const {
  const auto mine = layout_.part(i, groups_.shards.rank());
  const auto& tensor = parameter(i).tensor;
  const auto start = layout_.shard_numel() * groups_.shards.rank() + mine.begin - layout_.whole(i).begin;
  const auto length = mine.length == 0 ? 0 : std::clamp<int64_t>(tensor.numel() - start, 0, mine.length);
  TensorShard shard;
  shard.name = std::move(name);
  shard.order = shard::memory_order(tensor);
  shard.shape = shard::permuted(tensor.sizes(), shard.order);
  shard.begin = length == 0 ? 0 : start;
  shard.local = locals_[i].value.narrow(0, 0, length);
  shard.replica = groups_.replicas.rank();
  shard.parameter = tensor;
  shard.padded = locals_[i].value.numel();
  return shard;
}

std::string ShardedUnit::misplaced() const {
  for (const auto& parameter : plan_.parameters)
    if (!values_.holds(parameter.tensor)) return parameter.name;
  return {};
}

size_t ShardedUnit::awaited_count() const {
  size_t count = 0;
  for (size_t i = 0; i < size(); ++i) count += trainable_[i] && parameter(i).tensor.requires_grad();
  return count;
}

void ShardedUnit::release_memory() {
  values_.release_memory();
  if (gradients_) gradients_->release_memory();
}

void ShardedUnit::take_gradient(size_t i, const at::Tensor& gradient, bool last) {
  at::NoGradGuard no_grad;
  gradients_->take(i, in_memory_order(gradient.detach(), parameter(i).tensor), last);
}

void ShardedUnit::zero_gradient(size_t i, bool set_to_none) {
  if (!gradients_) return;
  gradients_->zero(i, set_to_none);
  if (set_to_none) parameter(i).tensor.mutable_grad().reset();
}

/// A gradient that the user has reset is gone.
GradientParts ShardedUnit::gradient_parts(size_t i) {
  const auto& tensor = parameter(i).tensor;
  if (!gradients_ || (placeholders_shown_ && !tensor.mutable_grad().defined())) return {};
  GradientParts parts;
  if (gradients_->has_unsharded_grad(i))
    parts.whole = gradients_->unsharded(i).as_strided(tensor.sizes(), tensor.strides());
  if (gradients_->has_sharded_grad(i)) parts.shard = gradients_->sum(i);
  return parts;
}

void ShardedUnit::load_gradient(size_t i, const GradientParts& parts) {
  zero_gradient(i, /*set_to_none=*/true);
  if (!parts.whole.defined() && !parts.shard.defined()) return;
  allocate_gradients();
  if (parts.shard.defined()) gradients_->load_sum(i, parts.shard);
  if (parts.whole.defined()) take_gradient(i, parts.whole, /*last=*/false);
  placeholders_shown_ = true;
  show_placeholder(i);
}

void ShardedUnit::show_placeholders() {
  placeholders_shown_ = true;
  for (size_t i = 0; gradients_ && i < size(); ++i)
    if (gradients_->has_unsharded_grad(i) || gradients_->has_sharded_grad(i)) show_placeholder(i);
}

at::Tensor ShardedUnit::new_placeholder(size_t i, const at::Tensor& like) const {
  return placeholder_memory_.view(layout_.whole(i).begin, like.sizes(), like.strides(), values_.used_dtype());
}

void ShardedUnit::show_placeholder(size_t i) {
  auto& shown = parameter(i).tensor.mutable_grad();
  auto& placeholder = placeholders_[i];
  // If the user has kept the last placeholder, makes a new one: the kept one stands for a gradient that is gone, and
  // must not count as this gradient when it is assigned to grad() again.
  if (!shown.is_same(placeholder) && placeholder.use_count() > 1) placeholder = new_placeholder(i, placeholder);
  // The placeholder has no memory, so it costs none. It only shows that there is a gradient.
  shown = placeholder;
}

void ShardedUnit::refuse_assigned_gradient(size_t i) const {
  const auto& shown = parameter(i).tensor.mutable_grad();
  if (!shown.defined() || shown.is_same(placeholders_[i])) return;
  throw UsageError("MU578", "the gradient of parameter '" + parameter(i).name + "' of unit '" + name() +
                                "' was assigned by the program, but its model is sharded, and a rank holds only a "
                                "part of each gradient: change gradients before they are reduced, by a hook of a "
                                "tensor in forward, or scale the loss; or choose the strategy 'ddp'");
}

bool ShardedUnit::has_reduced_gradient(size_t i) const {
  return gradients_ && gradients_->has_sharded_grad(i) &&
         (!placeholders_shown_ || parameter(i).tensor.mutable_grad().defined());
}

void ShardedUnit::drop_reduced_gradient(size_t i) {
  if (!gradients_) return;
  gradients_->drop_sum(i);
  if (!gradients_->has_unsharded_grad(i)) parameter(i).tensor.mutable_grad().reset();
}

bool ShardedUnit::has_gradient(size_t i) const {
  if (!gradients_) return false;
  refuse_assigned_gradient(i);
  if (gradients_->has_unsharded_grad(i))
    throw UsageError("MU579", "the gradient of parameter '" + parameter(i).name + "' of unit '" + name() +
                                  "' is used, but the ranks have not added up what backwards in no_sync gave: run the "
                                  "last backward before a step or a norm outside of no_sync");
  return has_reduced_gradient(i);
}

void ShardedUnit::hide_placeholders() {
  if (!placeholders_shown_) return;
  for (size_t i = 0; gradients_ && i < size(); ++i) refuse_assigned_gradient(i);
  placeholders_shown_ = false;
  for (size_t i = 0; gradients_ && i < size(); ++i) {
    auto& shown = parameter(i).tensor.mutable_grad();
    if ((gradients_->has_unsharded_grad(i) || gradients_->has_sharded_grad(i)) && !shown.defined())
      zero_gradient(i, /*set_to_none=*/true);
    shown.reset();
  }
}

}  // namespace muster::parallel
