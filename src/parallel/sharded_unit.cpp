#include "parallel/sharded_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

namespace muster::parallel {
namespace {

std::vector<int64_t> numels(const UnitPlan& plan) {
  std::vector<int64_t> sizes;
  for (const auto& parameter : plan.parameters) sizes.push_back(parameter.tensor.numel());
  return sizes;
}

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

/// The elements in the order in which they lie in memory, for the strides of `like`.
at::Tensor in_memory_order(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.sizes() == like.sizes() && tensor.strides() == like.strides()) return tensor.as_strided({tensor.numel()}, {1});
  auto ordered = at::empty_strided(like.sizes(), like.strides(), tensor.options());
  ordered.copy_(tensor);
  return ordered.as_strided({ordered.numel()}, {1});
}

int64_t unit_bytes(const UnitPlan& plan, const ShardLayout& layout) {
  return layout.total() * plan.parameters.front().tensor.element_size();
}

}  // namespace

ShardedUnit::ShardedUnit(UnitPlan plan, dist::Communicator group, const std::weak_ptr<hook::StorageWatcher>& watcher, int64_t tag)
    : plan_(std::move(plan)), group_(std::move(group)), layout_(numels(plan_), group_.size()),
      memory_(watcher, tag, "unit '" + plan_.name + "'", unit_bytes(plan_, layout_), plan_.parameters.front().tensor.device()),
      stand_in_memory_(watcher, ~tag, "the gradients of unit '" + plan_.name + "'", unit_bytes(plan_, layout_),
                       plan_.parameters.front().tensor.device()),
      trainable_(size()), waits_(size()), counted_(size()) {
  at::NoGradGuard no_grad;
  const auto options = plan_.parameters.front().tensor.options().requires_grad(false);
  auto whole = at::zeros({layout_.total()}, options);
  for (size_t i = 0; i < size(); ++i) {
    auto& tensor = plan_.parameters[i].tensor;
    if (!is_dense(tensor)) tensor.set_data(tensor.contiguous());
    whole.narrow(0, layout_.whole(i).begin, tensor.numel()).copy_(in_memory_order(tensor.detach(), tensor));
  }
  if (group_.size() > 1) group_.broadcast(whole);
  values_ = whole.narrow(0, layout_.chunk() * group_.rank(), layout_.chunk()).clone();
  gradients_ = at::zeros_like(values_);
  for (size_t i = 0; i < size(); ++i) {
    auto& tensor = plan_.parameters[i].tensor;
    const auto mine = layout_.part(i, group_.rank());
    pieces_.push_back({values_.narrow(0, mine.begin, mine.length), gradients_.narrow(0, mine.begin, mine.length)});
    trainable_[i] = tensor.requires_grad();
    trainable_count_ += tensor.requires_grad();
    const auto sizes = tensor.sizes().vec(), strides = tensor.strides().vec();
    stand_ins_.push_back(stand_in_memory_.view(layout_.whole(i).begin, sizes, strides, tensor.scalar_type()));
    tensor.set_data(memory_.view(layout_.whole(i).begin, sizes, strides, tensor.scalar_type()));
    tensor.mutable_grad().reset();
  }
}

ParameterPart ShardedUnit::part(size_t i, std::string name) const {
  const auto mine = layout_.part(i, group_.rank());
  const auto& tensor = parameter(i).tensor;
  const auto start = layout_.chunk() * group_.rank() + mine.begin - layout_.whole(i).begin;
  const auto length = mine.length == 0 ? 0 : std::clamp<int64_t>(tensor.numel() - start, 0, mine.length);
  return {std::move(name), tensor, pieces_[i].value.narrow(0, 0, length), length == 0 ? 0 : start, pieces_[i].value.numel()};
}

std::string ShardedUnit::misplaced() const {
  for (const auto& parameter : plan_.parameters)
    if (!memory_.holds(parameter.tensor)) return parameter.name;
  return {};
}

void ShardedUnit::gather() {
  at::NoGradGuard no_grad;
  auto whole = at::empty({layout_.total()}, values_.options());
  group_.start_all_gather_into(whole, values_).wait();
  memory_.fill(whole.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, whole.device())));
}

std::vector<at::Tensor> ShardedUnit::whole_values(bool main_only) const {
  at::NoGradGuard no_grad;
  at::Tensor whole;
  if (main_only) {
    auto parts = group_.gather(values_);
    if (group_.rank() == 0) whole = at::cat(parts);
  } else {
    whole = at::empty({layout_.total()}, values_.options());
    group_.start_all_gather_into(whole, values_).wait();
  }
  std::vector<at::Tensor> tensors(size());
  for (size_t i = 0; i < size() && whole.defined(); ++i) {
    const auto& like = parameter(i).tensor;
    tensors[i] = whole.as_strided(like.sizes(), like.strides(), layout_.whole(i).begin).clone();
  }
  return tensors;
}

at::Tensor ShardedUnit::waiting_part(size_t i, int rank, int64_t& start) {
  const auto part = layout_.part(i, rank);
  start = layout_.chunk() * rank + part.begin - layout_.whole(i).begin;
  const auto length = std::clamp<int64_t>(parameter(i).tensor.numel() - start, 0, part.length);
  return waiting_.select(0, rank).narrow(0, part.begin, length);
}

void ShardedUnit::take_gradient(size_t i, const at::Tensor& gradient) {
  at::NoGradGuard no_grad;
  const auto flags = static_cast<int64_t>(size());
  if (!waiting_.defined()) waiting_ = at::zeros({group_.size(), layout_.chunk() + flags}, values_.options());
  const auto flat = in_memory_order(gradient.detach(), parameter(i).tensor);
  for (int rank = 0; rank < group_.size(); ++rank) {
    int64_t start = 0;
    auto target = waiting_part(i, rank, start);
    if (target.numel() == 0) continue;
    const auto source = flat.narrow(0, start, target.numel());
    waits_[i] ? target.add_(source) : target.copy_(source);
  }
  waiting_.select(1, layout_.chunk() + static_cast<int64_t>(i)).fill_(1);
  waits_[i] = true;
}

bool ShardedUnit::waiting() const {
  return std::any_of(waits_.begin(), waits_.end(), [](char waits) { return waits != 0; });
}

void ShardedUnit::drop_waiting() {
  waiting_.reset();
  std::fill(waits_.begin(), waits_.end(), 0);
}

void ShardedUnit::clear_waiting(size_t i) {
  if (!waits_[i]) return;
  for (int rank = 0; rank < group_.size(); ++rank) {
    int64_t start = 0;
    waiting_part(i, rank, start).zero_();
  }
  waiting_.select(1, layout_.chunk() + static_cast<int64_t>(i)).zero_();
}

void ShardedUnit::reduce() {
  at::NoGradGuard no_grad;
  const auto chunk = layout_.chunk(), flags = static_cast<int64_t>(size());
  if (!waiting_.defined()) waiting_ = at::zeros({group_.size(), chunk + flags}, values_.options());
  waiting_.mul_(1.0 / group_.size());
  auto mine = at::empty({chunk + flags}, values_.options());
  group_.reduce_scatter(mine, waiting_.view({-1}));
  drop_waiting();
  const auto used = mine.narrow(0, chunk, flags).to(at::kCPU, at::kFloat);
  for (size_t i = 0; i < size(); ++i) {
    if (used.const_data_ptr<float>()[i] <= 0) continue;
    const auto part = layout_.part(i, group_.rank());
    const auto sum = mine.narrow(0, part.begin, part.length);
    counted_[i] ? pieces_[i].gradient.add_(sum) : pieces_[i].gradient.copy_(sum);
    counted_[i] = true;
  }
}

void ShardedUnit::zero_gradient(size_t i, bool set_to_none) {
  at::NoGradGuard no_grad;
  clear_waiting(i);
  if (set_to_none) {
    waits_[i] = counted_[i] = false;
    parameter(i).tensor.mutable_grad().reset();
  } else {
    pieces_[i].gradient.zero_();
  }
}

void ShardedUnit::scale_gradient(size_t i, double factor) {
  at::NoGradGuard no_grad;
  for (int rank = 0; waits_[i] && rank < group_.size(); ++rank) {
    int64_t start = 0;
    waiting_part(i, rank, start).mul_(factor);
  }
  if (counted_[i]) pieces_[i].gradient.mul_(factor);
}

void ShardedUnit::show_stand_ins() {
  for (size_t i = 0; i < size(); ++i)
    if (waits_[i] || counted_[i]) parameter(i).tensor.mutable_grad() = stand_ins_[i];
}

void ShardedUnit::hide_stand_ins() {
  for (size_t i = 0; i < size(); ++i) {
    auto& shown = parameter(i).tensor.mutable_grad();
    if ((waits_[i] || counted_[i]) && !shown.defined()) zero_gradient(i, /*set_to_none=*/true);
    shown.reset();
  }
}

}  // namespace muster::parallel
