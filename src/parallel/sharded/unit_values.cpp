#include "parallel/sharded/unit_values.h"

#include <array>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

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

constexpr device::SyncPoint kUnshardStream{"fsdp: full parameters are gathered on a stream of their own"};
constexpr device::SyncPoint kGathered{"fsdp: a stream uses full parameters after they were gathered"};
constexpr device::SyncPoint kWritten{"fsdp: written values are gathered after they were written"};

at::ScalarType built_dtype(const UnitPlan& plan) { return plan.parameters.front().tensor.scalar_type(); }

}  // namespace

UnitTransition transition(bool stays_unsharded, UnitState state, UnitEvent event) {
  return (stays_unsharded ? kStaysUnsharded : kReshards)[static_cast<size_t>(state)][static_cast<size_t>(event)];
}

at::ScalarType dtype_of_use(const UnitPlan& plan, const ShardSettings& settings) {
  const bool casts = at::isFloatingType(built_dtype(plan)) && !plan.keeps_dtype;
  return casts ? settings.param_dtype.value_or(built_dtype(plan)) : built_dtype(plan);
}

UnitValues::UnitValues(const UnitPlan& plan, const ShardLayout& layout, const ShardGroups& groups,
                       const ShardSettings& settings, const ShardStreams& streams, BufferPool& buffers,
                       OneCopy* one_copy, const std::weak_ptr<hook::StorageWatcher>& watcher, int64_t owner_id)
    : plan_(plan), layout_(layout), groups_(groups), settings_(settings), streams_(streams), buffers_(buffers),
      one_copy_(one_copy), used_dtype_(dtype_of_use(plan, settings)),
      memory_(watcher, owner_id, "unit '" + plan.name + "'", full_bytes(), plan.parameters.front().tensor.device()) {
  at::NoGradGuard no_grad;
  const auto kind = plan_.parameters.front().tensor.options().requires_grad(false);
  if (one_copy_) shared_copy_ = comm::try_shared_tensor(groups_.shards, layout_.shard_numel(), kind.dtype(used_dtype_));
  const bool stays = stays_unsharded() && used_dtype_ == built_dtype(plan_) && !has_one_copy();
  const at::Tensor whole =
      stays ? comm::shared_zeros(groups_.shards, layout_.total(), kind) : at::zeros({layout_.total()}, kind);
  for (size_t i = 0; i < plan_.parameters.size(); ++i) {
    auto& tensor = plan_.parameters[i].tensor;
    // Strides with gaps or overlaps cannot be kept in flat memory.
    if (!tensor.is_non_overlapping_and_dense()) tensor.set_data(tensor.contiguous());
    whole.narrow(0, layout_.whole(i).begin, tensor.numel()).copy_(in_memory_order(tensor.detach(), tensor));
  }
  if (groups_.replicas.size() > 1) groups_.replicas.internal(label("values")).broadcast(whole);
  if (groups_.shards.size() > 1) groups_.shards.internal(label("values")).broadcast(whole);
  if (has_one_copy()) {
    share(whole);
  } else if (stays_unsharded()) {
    unsharded_ = whole.to(used_dtype_);
    shard_ = used_dtype_ == whole.scalar_type() ? local_shard(unsharded_) : local_shard(whole).clone();
    fill_memory();
    state_ = UnitState::unsharded;
  } else {
    shard_ = comm::shared_zeros(groups_.shards, layout_.shard_numel(), whole.options()).copy_(local_shard(whole));
  }
}

void UnitValues::share(const at::Tensor& whole) {
  shard_ = used_dtype_ == whole.scalar_type() ? shared_copy_.own : local_shard(whole).clone();
  shared_copy_.own.copy_(local_shard(whole));
  if (!stays_unsharded()) return;
  unsharded_ = shared_copy_.whole;
  fill_memory();
  state_ = UnitState::unsharded;
}

void UnitValues::write_to_shared_copy() {
  const at::NoGradGuard no_grad;
  if (has_one_copy() && used_dtype_ != shard_.scalar_type()) shared_copy_.own.copy_(shard_);
}

void UnitValues::forget() {
  if (!has_one_copy()) return;
  memory_.free();
  release(std::exchange(unsharded_, at::Tensor()));
  state_ = UnitState::sharded;
}

/// Makes unsharded_ the memory that the parameters view.
void UnitValues::fill_memory() {
  memory_.fill({unsharded_.mutable_data_ptr(), new at::Tensor(unsharded_),
                [](void* kept) { delete static_cast<at::Tensor*>(kept); }, unsharded_.device()});
}

/// Returns memory that is no longer used to the pool.
void UnitValues::release(const at::Tensor& unsharded) {
  if (!unsharded.is_same(shared_copy_.whole)) buffers_.release(unsharded, uses_.record());
}

at::Tensor UnitValues::view(size_t i) const {
  const auto& tensor = plan_.parameters[i].tensor;
  return memory_.view(layout_.whole(i).begin, tensor.sizes(), tensor.strides(), used_dtype_);
}

at::Tensor UnitValues::local_shard(const at::Tensor& whole) const {
  return whole.narrow(0, layout_.shard_numel() * groups_.shards.rank(), layout_.shard_numel());
}

at::Tensor UnitValues::post_forward_shard(const at::Tensor& whole) const {
  const auto length = layout_.total() / groups_.post_forward.size();
  return whole.narrow(0, length * groups_.post_forward.rank(), length);
}

void UnitValues::free_post_forward_shard() {
  if (!post_forward_shard_.defined()) return;
  const device::StreamScope scope(kUnshardStream, streams_.unshard);  // the only stream that uses it
  buffers_.release_on_current(std::exchange(post_forward_shard_, at::Tensor()));
}

int64_t UnitValues::held_bytes() const {
  const bool apart = used_dtype_ != shard_.scalar_type() || (!stays_unsharded() && !has_one_copy());
  const auto whole = has_one_copy() ? full_bytes() / groups_.shards.size() : stays_unsharded() ? full_bytes() : 0;
  return whole + (apart ? static_cast<int64_t>(shard_.nbytes()) : 0);
}

bool UnitValues::handle(UnitEvent event) {
  const auto move = transition(stays_unsharded(), state_, event);
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
void UnitValues::drop_unshard() {
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

void UnitValues::start_unshard() {
  at::NoGradGuard no_grad;
  const device::StreamScope scope(kUnshardStream, streams_.unshard);
  uses_ = {};
  if (has_one_copy()) {
    unsharded_ = shared_copy_.whole;
    one_copy_->note(purpose_, plan_.name);
    return;
  }
  if (stays_unsharded()) memory_.free();  // code that bypasses the dispatcher must not read half-gathered values
  else unsharded_ = buffers_.allocate(layout_.total(), shard_.options().dtype(used_dtype_));
  if (post_forward_shard_.defined()) {
    work_ = groups_.post_forward.internal(label(purpose_)).start_all_gather_into(unsharded_, post_forward_shard_);
    return;
  }
  auto own = local_shard(unsharded_);
  const bool converts = used_dtype_ != shard_.scalar_type();
  if (converts) own.copy_(shard_);
  work_ = groups_.shards.internal(label(purpose_))
              .start_all_gather_into(unsharded_, converts || stays_unsharded() ? own : shard_);
}

void UnitValues::finish_unshard() {
  const device::StreamScope scope(kUnshardStream, streams_.unshard);
  std::exchange(work_, comm::Work()).wait();
  gathered_ = device::record(streams_.accelerator);
}

void UnitValues::wait_for_gathered() { device::stream_wait(kGathered, gathered_, streams_.accelerator); }

void UnitValues::wait_for_unshard() {
  try {
    finish_unshard();
  } catch (...) {
    state_ = UnitState::sharded;  // the next access gathers again, and fails again
    if (!stays_unsharded()) buffers_.forget(std::exchange(unsharded_, at::Tensor()));
    throw;
  }
  free_post_forward_shard();
  fill_memory();
}

void UnitValues::reshard() {
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

void UnitValues::release_memory() {
  keeps_post_forward_shard_ = false;
  if (state_ == UnitState::unsharded && !stays_unsharded()) reshard();
  free_post_forward_shard();
}

std::vector<at::Tensor> UnitValues::full_params(bool main_only) const {
  at::NoGradGuard no_grad;
  at::Tensor whole;
  if (main_only) {
    auto parts = groups_.shards.internal(label("values")).gather(shard_);
    if (groups_.shards.rank() == 0) whole = at::cat(parts);
  } else {
    whole = at::empty({layout_.total()}, shard_.options());
    groups_.shards.internal(label("full values")).all_gather_into(whole, shard_);
  }
  std::vector<at::Tensor> tensors(plan_.parameters.size());
  for (size_t i = 0; i < tensors.size() && whole.defined(); ++i) {
    const auto& like = plan_.parameters[i].tensor;
    tensors[i] = whole.as_strided(like.sizes(), like.strides(), layout_.whole(i).begin).clone();
  }
  return tensors;
}

/// On ranks that write, the memory is a copy. In the end each rank's own part of it becomes the value.
void UnitValues::begin_on_one_copy(bool main_only, bool writes) {
  handle(UnitEvent::access);
  open_ = !main_only || stays_unsharded() || groups_.shards.rank() == 0;
  if (!open_) {
    handle(UnitEvent::reshard);
  } else if (writes) {
    unsharded_ = buffers_.allocate(layout_.total(), shared_copy_.whole.options()).copy_(shared_copy_.whole);
    fill_memory();
  }
}

void UnitValues::begin_full_params(bool main_only, bool writes) {
  at::NoGradGuard no_grad;
  open_ = true;
  keeps_post_forward_shard_ = false;
  free_post_forward_shard();
  if (has_one_copy()) return begin_on_one_copy(main_only, writes);
  if (!main_only || stays_unsharded()) {
    handle(UnitEvent::access);
    use_on_current_stream();
    if (writes && shard_.is_alias_of(unsharded_)) before_writes_ = shard_.clone();
    return;
  }
  handle(UnitEvent::reshard);
  const auto parts = groups_.shards.internal(label("values")).gather(shard_);
  open_ = groups_.shards.rank() == 0;
  if (!open_) return;
  unsharded_ = buffers_.allocate(layout_.total(), shard_.options().dtype(used_dtype_));
  for (size_t r = 0; r < parts.size(); ++r)
    unsharded_.narrow(0, static_cast<int64_t>(r) * layout_.shard_numel(), layout_.shard_numel()).copy_(parts[r]);
  gathered_ = device::record(streams_.accelerator);
  uses_ = {};
  uses_.add(streams_.accelerator);
  fill_memory();
  state_ = UnitState::unsharded;
}

void UnitValues::end_full_params(const FullParamsOptions& how, bool write_back) {
  at::NoGradGuard no_grad;
  const auto before = std::exchange(before_writes_, at::Tensor());
  if (write_back) write_full_params(how.rank0_only);
  else if (before.defined()) shard_.copy_(before);
  device::wait_stream(kWritten, streams_.unshard, device::current_stream(streams_.accelerator));
  open_ = false;
  if (has_one_copy()) {
    forget();
    if (stays_unsharded()) handle(UnitEvent::access);
    return;
  }
  handle(stays_unsharded() && how.writeback ? UnitEvent::update : UnitEvent::reshard);
}

/// Takes over what one rank wrote, as the value on all ranks, or what each rank wrote into its own part.
void UnitValues::write_full_params(bool main_only) {
  auto written = main_only && !unsharded_.defined()
                     ? buffers_.allocate(layout_.total(), shard_.options().dtype(used_dtype_))
                     : unsharded_;
  if (main_only && groups_.shards.size() > 1) groups_.shards.internal(label("written values")).broadcast(written);
  if (groups_.replicas.size() > 1) groups_.replicas.internal(label("written values")).broadcast(written);
  keep_written(local_shard(written));
  write_to_shared_copy();
  if (!unsharded_.is_same(written)) buffers_.release_on_current(written);
}

/// If the written values have lower precision, keeps the old values wherever nothing was changed.
void UnitValues::keep_written(const at::Tensor& written) {
  if (written.scalar_type() != shard_.scalar_type())
    shard_.copy_(at::where(shard_.to(written.scalar_type()).eq(written), shard_, written.to(shard_.scalar_type())));
  else if (written.const_data_ptr() != shard_.const_data_ptr()) shard_.copy_(written);
}

}  // namespace muster::parallel
