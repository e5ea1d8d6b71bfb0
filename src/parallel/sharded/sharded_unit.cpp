#include "parallel/sharded/sharded_unit.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "muster/base/error.h"

namespace muster::parallel {
namespace {

constexpr auto kSharded = UnitState::sharded, kUnsharding = UnitState::unsharding, kUnsharded = UnitState::unsharded;

using Row = std::array<UnitTransition, 4>;  // by event: prefetch, access, reshard, update
using Table = std::array<Row, 3>;           // by state: sharded, unsharding, unsharded

constexpr Table kReshards{{
    {{{.start = true, .next = kUnsharding},
      {.start = true, .wait = true, .next = kUnsharded},
      {.next = kSharded},
      {.next = kSharded}}},
    {{{.next = kUnsharding},
      {.wait_first = true, .next = kUnsharded},
      {.detach = true, .next = kSharded},
      {.detach = true, .next = kSharded}}},
    {{{.next = kUnsharded}, {.next = kUnsharded}, {.free = true, .next = kSharded}, {.free = true, .next = kSharded}}},
}};

// Its memory always exists, so a new gather may write to it only when the last gather has ended.
constexpr Table kStaysUnsharded{{
    {{{.start = true, .next = kUnsharding},
      {.start = true, .wait = true, .next = kUnsharded},
      {.next = kSharded},
      {.start = true, .next = kUnsharding}}},
    {{{.next = kUnsharding},
      {.wait_first = true, .next = kUnsharded},
      {.next = kUnsharding},
      {.wait_first = true, .start = true, .next = kUnsharding}}},
    {{{.next = kUnsharded}, {.next = kUnsharded}, {.next = kUnsharded}, {.start = true, .next = kUnsharding}}},
}};

}  // namespace

UnitTransition transition(bool stays_unsharded, UnitState state, UnitEvent event) {
  return (stays_unsharded ? kStaysUnsharded : kReshards)[static_cast<size_t>(state)][static_cast<size_t>(event)];
}
namespace {

constexpr device::SyncPoint kUnshardStream{"fsdp: full parameters are gathered on a stream of their own"};
constexpr device::SyncPoint kGathered{"fsdp: a stream uses full parameters after they were gathered"};

std::vector<int64_t> numels(const UnitPlan& plan) {
  std::vector<int64_t> sizes;
  for (const auto& parameter : plan.parameters) sizes.push_back(parameter.tensor.numel());
  return sizes;
}

/// The elements in the order in which they lie in memory with the strides of `like`.
at::Tensor in_memory_order(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.sizes() == like.sizes() && tensor.strides() == like.strides())
    return tensor.as_strided({tensor.numel()}, {1});
  auto ordered = at::empty_strided(like.sizes(), like.strides(), tensor.options());
  ordered.copy_(tensor);
  return ordered.as_strided({ordered.numel()}, {1});
}

at::ScalarType built_dtype(const UnitPlan& plan) { return plan.parameters.front().tensor.scalar_type(); }

at::ScalarType dtype_of_use(const UnitPlan& plan, const ShardSettings& settings) {
  const bool casts = at::isFloatingType(built_dtype(plan)) && !plan.keeps_dtype;
  return casts ? settings.param_dtype.value_or(built_dtype(plan)) : built_dtype(plan);
}

/// Each shard must be a multiple of this many elements.
int64_t shard_multiple(const OneCopy* one_copy, at::ScalarType dtype) {
  return one_copy ? one_copy->part_multiple(c10::elementSize(dtype)) : 1;
}

}  // namespace

ShardedUnit::ShardedUnit(UnitPlan plan, const ShardGroups& groups, const ShardSettings& settings,
                         const ShardStreams& streams, BufferPool& buffers, OneCopy* one_copy,
                         const std::weak_ptr<hook::StorageWatcher>& watcher, int64_t owner_id)
    : plan_(std::move(plan)), groups_(groups), settings_(settings), streams_(streams), buffers_(buffers),
      one_copy_(one_copy),
      layout_(numels(plan_), groups.shards.size(), shard_multiple(one_copy, dtype_of_use(plan_, settings))),
      used_dtype_(dtype_of_use(plan_, settings)),
      memory_(watcher, owner_id, "unit '" + plan_.name + "'", full_bytes(), plan_.parameters.front().tensor.device()),
      placeholder_memory_(watcher, ~owner_id, "the gradients of unit '" + plan_.name + "'", full_bytes(),
                          plan_.parameters.front().tensor.device()),
      trainable_(size()) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < size(); ++i) {
    trainable_[i] = parameter(i).tensor.requires_grad();
    trainable_count_ += parameter(i).tensor.requires_grad();
    elements_ += parameter(i).tensor.numel();
  }
  allocate_values();
  if (trainable_count_ > 0) allocate_gradients(/*on_all_ranks=*/true);
  use_parameter_views();
}

void ShardedUnit::allocate_gradients(bool on_all_ranks) {
  if (gradients_) return;
  at::NoGradGuard no_grad;
  const auto reduce = settings_.reduce_dtype.value_or(values_.scalar_type());
  gradients_ = std::make_unique<UnitGradients>(
      layout_, numels(plan_), groups_,
      UnitGradients::Options{values_.options(), reduce, settings_.stage == ShardStage::optimizer,
                             settings_.divisor_before(reduce, groups_.size()), on_all_ranks, streams_.reduce},
      buffers_);
  for (size_t i = 0; i < locals_.size(); ++i) locals_[i].gradient = gradients_->part(i);
}

void ShardedUnit::add_unfrozen(size_t i) {
  trainable_[i] = true;
  ++trainable_count_;
}

void ShardedUnit::allocate_values() {
  const auto kind = plan_.parameters.front().tensor.options().requires_grad(false);
  if (one_copy_) shared_copy_ = comm::try_shared_tensor(groups_.shards, layout_.shard_numel(), kind.dtype(used_dtype_));
  const bool stays = keeps_params_unsharded() && used_dtype_ == built_dtype(plan_) && !has_one_copy();
  const at::Tensor whole =
      stays ? comm::shared_zeros(groups_.shards, layout_.total(), kind) : at::zeros({layout_.total()}, kind);
  for (size_t i = 0; i < size(); ++i) {
    auto& tensor = plan_.parameters[i].tensor;
    // Strides with gaps or overlaps cannot be kept in flat memory.
    if (!tensor.is_non_overlapping_and_dense()) tensor.set_data(tensor.contiguous());
    whole.narrow(0, layout_.whole(i).begin, tensor.numel()).copy_(in_memory_order(tensor.detach(), tensor));
  }
  if (groups_.replicas.size() > 1) groups_.replicas.internal(label("values")).broadcast(whole);
  if (groups_.shards.size() > 1) groups_.shards.internal(label("values")).broadcast(whole);
  if (has_one_copy()) return share_values(whole);
  if (keeps_params_unsharded()) {
    unsharded_ = whole.to(used_dtype_);
    values_ = used_dtype_ == whole.scalar_type() ? local_shard(unsharded_) : local_shard(whole).clone();
    fill_memory();
    state_ = UnitState::unsharded;
  } else {
    values_ = comm::shared_zeros(groups_.shards, layout_.shard_numel(), whole.options()).copy_(local_shard(whole));
  }
}

void ShardedUnit::share_values(const at::Tensor& whole) {
  values_ = used_dtype_ == whole.scalar_type() ? shared_copy_.own : local_shard(whole).clone();
  shared_copy_.own.copy_(local_shard(whole));
  if (!keeps_params_unsharded()) return;
  unsharded_ = shared_copy_.whole;
  fill_memory();
  state_ = UnitState::unsharded;
}

void ShardedUnit::write_to_shared_copy() {
  const at::NoGradGuard no_grad;
  if (has_one_copy() && used_dtype_ != values_.scalar_type()) shared_copy_.own.copy_(values_);
}

void ShardedUnit::forget_values() {
  if (!has_one_copy()) return;
  memory_.free();
  release(std::exchange(unsharded_, at::Tensor()));
  state_ = UnitState::sharded;
}

/// Makes unsharded_ the memory that the parameters view.
void ShardedUnit::fill_memory() {
  memory_.fill({unsharded_.mutable_data_ptr(), new at::Tensor(unsharded_),
                [](void* kept) { delete static_cast<at::Tensor*>(kept); }, unsharded_.device()});
}

/// Returns memory that is no longer used to the pool.
void ShardedUnit::release(const at::Tensor& unsharded) {
  if (!unsharded.is_same(shared_copy_.whole)) buffers_.release(unsharded, uses_.record());
}

void ShardedUnit::use_parameter_views() {
  for (size_t i = 0; i < size(); ++i) {
    auto& tensor = plan_.parameters[i].tensor;
    const auto mine = layout_.part(i, groups_.shards.rank());
    locals_.push_back({values_.narrow(0, mine.begin, mine.length),
                       gradients_ ? gradients_->part(i) : at::empty({0}, values_.options()), true});
    const auto sizes = tensor.sizes().vec(), strides = tensor.strides().vec();
    placeholders_.push_back(placeholder_memory_.view(layout_.whole(i).begin, sizes, strides, used_dtype_));
    // The user's tensor itself becomes a view of watched memory, with its dispatch key, so every handle of it is seen.
    tensor.set_data(memory_.view(layout_.whole(i).begin, sizes, strides, used_dtype_));
    tensor.mutable_grad().reset();
  }
}

at::Tensor ShardedUnit::local_shard(const at::Tensor& whole) const {
  return whole.narrow(0, layout_.shard_numel() * groups_.shards.rank(), layout_.shard_numel());
}

at::Tensor ShardedUnit::post_forward_shard(const at::Tensor& whole) const {
  const auto length = layout_.total() / groups_.post_forward.size();
  return whole.narrow(0, length * groups_.post_forward.rank(), length);
}

void ShardedUnit::free_post_forward_shard() {
  if (!post_forward_shard_.defined()) return;
  const device::StreamScope scope(kUnshardStream, streams_.unshard);  // the only stream that uses it
  buffers_.release_on_current(std::exchange(post_forward_shard_, at::Tensor()));
}

bool ShardedUnit::covers(const ShardedUnit& other) const {
  return plan_.root || name() == other.name() || other.name().starts_with(name() + ".");
}

ParameterShard ShardedUnit::shard(size_t i, std::string name) const {
  const auto mine = layout_.part(i, groups_.shards.rank());
  const auto& tensor = parameter(i).tensor;
  const auto start = layout_.shard_numel() * groups_.shards.rank() + mine.begin - layout_.whole(i).begin;
  const auto length = mine.length == 0 ? 0 : std::clamp<int64_t>(tensor.numel() - start, 0, mine.length);
  ParameterShard shard;
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
    if (!memory_.holds(parameter.tensor)) return parameter.name;
  return {};
}

size_t ShardedUnit::awaited_count() const {
  size_t count = 0;
  for (size_t i = 0; i < size(); ++i) count += trainable_[i] && parameter(i).tensor.requires_grad();
  return count;
}

int64_t ShardedUnit::held_bytes() const {
  const bool apart = used_dtype_ != values_.scalar_type() || (!keeps_params_unsharded() && !has_one_copy());
  const auto whole = has_one_copy()             ? full_bytes() / groups_.shards.size()
                     : keeps_params_unsharded() ? full_bytes()
                                                : 0;
  return whole + (apart ? static_cast<int64_t>(values_.nbytes()) : 0) + (gradients_ ? gradients_->held_bytes() : 0);
}

bool ShardedUnit::handle(UnitEvent event) {
  const auto move = transition(keeps_params_unsharded(), state_, event);
  if (move.start && has_one_copy()) one_copy_->require_whole();
  if (move.wait_first) wait_for_unshard();
  if (move.detach) drop_unshard();
  if (move.free) reshard();
  if (event == UnitEvent::update) free_post_forward_shard();
  state_ = move.next;
  if (move.start) start_unshard();
  if (move.wait) wait_for_unshard();
  return move.start && !has_one_copy();
}

/// Drops a gather whose result nobody will use. If a device runs it, its memory can be reused on the device's stream.
void ShardedUnit::drop_unshard() {
  if (streams_.unshard) {
    finish_unshard();
    free_post_forward_shard();
    const device::StreamScope scope(kUnshardStream, streams_.unshard);
    return buffers_.release_on_current(std::exchange(unsharded_, at::Tensor()));
  }
  work_ = {};
  const auto detached = std::exchange(unsharded_, at::Tensor());
  if (!detached.is_same(shared_copy_.whole)) buffers_.forget(detached);
  if (post_forward_shard_.defined()) buffers_.forget(std::exchange(post_forward_shard_, at::Tensor()));
}

void ShardedUnit::start_unshard() {
  at::NoGradGuard no_grad;
  const device::StreamScope scope(kUnshardStream, streams_.unshard);
  uses_ = {};
  if (has_one_copy()) {
    unsharded_ = shared_copy_.whole;
    one_copy_->note(purpose_, plan_.name);
    return;
  }
  if (keeps_params_unsharded()) memory_.free();  // code that bypasses the dispatcher must not read half-gathered values
  else unsharded_ = buffers_.allocate(layout_.total(), values_.options().dtype(used_dtype_));
  if (post_forward_shard_.defined()) {
    work_ = groups_.post_forward.internal(label(purpose_)).start_all_gather_into(unsharded_, post_forward_shard_);
    return;
  }
  auto own = local_shard(unsharded_);
  const bool converts = used_dtype_ != values_.scalar_type();
  if (converts) own.copy_(values_);
  work_ = groups_.shards.internal(label(purpose_))
              .start_all_gather_into(unsharded_, converts || keeps_params_unsharded() ? own : values_);
}

void ShardedUnit::finish_unshard() {
  const device::StreamScope scope(kUnshardStream, streams_.unshard);
  std::exchange(work_, comm::Work()).wait();
  gathered_ = device::record(streams_.accelerator);
}

void ShardedUnit::wait_for_gathered() { device::stream_wait(kGathered, gathered_, streams_.accelerator); }

void ShardedUnit::wait_for_unshard() {
  try {
    finish_unshard();
  } catch (...) {
    state_ = UnitState::sharded;  // the next access gathers again, and fails again
    if (!keeps_params_unsharded()) buffers_.forget(std::exchange(unsharded_, at::Tensor()));
    throw;
  }
  free_post_forward_shard();
  fill_memory();
}

void ShardedUnit::reshard() {
  if (keeps_post_forward_shard_) {
    const at::NoGradGuard no_grad;
    const device::StreamScope scope(kUnshardStream, streams_.unshard);
    const auto own = post_forward_shard(unsharded_);
    post_forward_shard_ = buffers_.allocate(own.numel(), own.options());
    post_forward_shard_.copy_(own);
    uses_.add(streams_.accelerator);
  }
  memory_.free();
  release(std::exchange(unsharded_, at::Tensor()));
}

void ShardedUnit::release_memory() {
  keeps_post_forward_shard_ = false;
  if (state_ == UnitState::unsharded && !keeps_params_unsharded()) reshard();
  free_post_forward_shard();
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

void ShardedUnit::show_placeholder(size_t i) {
  auto& shown = parameter(i).tensor.mutable_grad();
  auto& placeholder = placeholders_[i];
  // If the user has kept the last placeholder, makes a new one: the kept one stands for a gradient that is gone, and
  // must not count as this gradient when it is assigned to grad() again.
  if (!shown.is_same(placeholder) && placeholder.use_count() > 1)
    placeholder =
        placeholder_memory_.view(layout_.whole(i).begin, placeholder.sizes(), placeholder.strides(), used_dtype_);
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

bool ShardedUnit::has_gradient(size_t i) const {
  if (!gradients_) return false;
  refuse_assigned_gradient(i);
  if (gradients_->has_unsharded_grad(i))
    throw UsageError("MU579", "the gradient of parameter '" + parameter(i).name + "' of unit '" + name() +
                                  "' is used, but the ranks have not added up what backwards in no_sync gave: run the "
                                  "last backward before a step or a norm outside of no_sync");
  return gradients_->has_sharded_grad(i) && (!placeholders_shown_ || parameter(i).tensor.mutable_grad().defined());
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

namespace {

constexpr device::SyncPoint kWritten{"fsdp: written values are gathered after they were written"};

}  // namespace

std::vector<at::Tensor> ShardedUnit::full_params(bool main_only) const {
  at::NoGradGuard no_grad;
  at::Tensor whole;
  if (main_only) {
    auto parts = groups_.shards.internal(label("values")).gather(values_);
    if (groups_.shards.rank() == 0) whole = at::cat(parts);
  } else {
    whole = at::empty({layout_.total()}, values_.options());
    groups_.shards.internal(label("full values")).all_gather_into(whole, values_);
  }
  std::vector<at::Tensor> tensors(size());
  for (size_t i = 0; i < size() && whole.defined(); ++i) {
    const auto& like = parameter(i).tensor;
    tensors[i] = whole.as_strided(like.sizes(), like.strides(), layout_.whole(i).begin).clone();
  }
  return tensors;
}

/// On ranks that write, the memory is a copy. In the end each rank's own part of it becomes the value.
void ShardedUnit::begin_on_one_copy(bool main_only, bool writes) {
  handle(UnitEvent::access);
  open_ = !main_only || keeps_params_unsharded() || groups_.shards.rank() == 0;
  if (!open_) {
    handle(UnitEvent::reshard);
  } else if (writes) {
    unsharded_ = buffers_.allocate(layout_.total(), shared_copy_.whole.options()).copy_(shared_copy_.whole);
    fill_memory();
  }
}

void ShardedUnit::begin_full_params(bool main_only, bool writes) {
  at::NoGradGuard no_grad;
  open_ = true;
  keeps_post_forward_shard_ = false;
  free_post_forward_shard();
  if (has_one_copy()) return begin_on_one_copy(main_only, writes);
  if (!main_only || keeps_params_unsharded()) {
    handle(UnitEvent::access);
    use_on_current_stream();
    if (writes && values_.is_alias_of(unsharded_)) before_writes_ = values_.clone();
    return;
  }
  handle(UnitEvent::reshard);
  const auto parts = groups_.shards.internal(label("values")).gather(values_);
  open_ = groups_.shards.rank() == 0;
  if (!open_) return;
  unsharded_ = buffers_.allocate(layout_.total(), values_.options().dtype(used_dtype_));
  for (size_t r = 0; r < parts.size(); ++r)
    unsharded_.narrow(0, static_cast<int64_t>(r) * layout_.shard_numel(), layout_.shard_numel()).copy_(parts[r]);
  gathered_ = device::record(streams_.accelerator);
  uses_ = {};
  uses_.add(streams_.accelerator);
  fill_memory();
  state_ = UnitState::unsharded;
}

void ShardedUnit::end_full_params(const FullParamsOptions& how, bool write_back) {
  at::NoGradGuard no_grad;
  const auto before = std::exchange(before_writes_, at::Tensor());
  if (write_back) write_full_params(how.rank0_only);
  else if (before.defined()) values_.copy_(before);
  device::wait_stream(kWritten, streams_.unshard, device::current_stream(streams_.accelerator));
  open_ = false;
  if (has_one_copy()) {
    forget_values();
    if (keeps_params_unsharded()) handle(UnitEvent::access);
    return;
  }
  handle(keeps_params_unsharded() && how.writeback ? UnitEvent::update : UnitEvent::reshard);
}

/// Takes over what one rank wrote, as the value on all ranks, or what each rank wrote into its own part.
void ShardedUnit::write_full_params(bool main_only) {
  auto written = main_only && !unsharded_.defined()
                     ? buffers_.allocate(layout_.total(), values_.options().dtype(used_dtype_))
                     : unsharded_;
  if (main_only && groups_.shards.size() > 1) groups_.shards.internal(label("written values")).broadcast(written);
  if (groups_.replicas.size() > 1) groups_.replicas.internal(label("written values")).broadcast(written);
  keep_written(local_shard(written));
  write_to_shared_copy();
  if (!unsharded_.is_same(written)) buffers_.release_on_current(written);
}

/// If the written values have lower precision, keeps the old values wherever nothing was changed.
void ShardedUnit::keep_written(const at::Tensor& written) {
  if (written.scalar_type() != values_.scalar_type())
    values_.copy_(at::where(values_.to(written.scalar_type()).eq(written), values_, written.to(values_.scalar_type())));
  else if (written.const_data_ptr() != values_.const_data_ptr()) values_.copy_(written);
}

}  // namespace muster::parallel
