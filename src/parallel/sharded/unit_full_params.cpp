#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "parallel/sharded/sharded_unit.h"

namespace muster::parallel {
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

/// On ranks that write, the memory is a copy, of which each rank's own part becomes the value in the end.
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

/// What one rank wrote becomes the value on all, or what each rank wrote into its own part.
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

/// Where the written values are of lower precision, only what was changed counts.
void ShardedUnit::keep_written(const at::Tensor& written) {
  if (written.scalar_type() != values_.scalar_type())
    values_.copy_(at::where(values_.to(written.scalar_type()).eq(written), values_, written.to(values_.scalar_type())));
  else if (written.const_data_ptr() != values_.const_data_ptr()) values_.copy_(written);
}

}  // namespace muster::parallel
