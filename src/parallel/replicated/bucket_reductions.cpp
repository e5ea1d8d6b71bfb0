#include "parallel/replicated/bucket_reductions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include "base/text.h"
#include "hook/below_autograd.h"
#include "muster/base/error.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kBucketStream{"ddp: buckets are communicated on a stream of their own"};
constexpr device::SyncPoint kBucketWritten{"ddp: a bucket is communicated after all streams that have written it"};
constexpr device::SyncPoint kAverage{"ddp: what follows the backward reads averaged gradients"};
constexpr device::SyncPoint kLateFreed{"ddp: memory of late gradients is freed after they were read"};

comm::OperationLabel gradient_label(const std::string& model, const std::string& what) {
  return {.text = comm::kGradientsLabel + model + ", " + what, .source = comm::Source::library};
}

comm::Communicator in_step(const comm::Communicator& group, comm::OperationLabel label, int64_t step) {
  label.gradient_step = step;
  return group.with_label(std::move(label));
}

}  // namespace

BucketReductions::BucketReductions(std::string model, const Replica& replica, const comm::Communicator& group,
                                   std::shared_ptr<CommHook> hook)
    : replica_(replica), group_(group), hook_(std::move(hook)), model_(std::move(model)) {
  extend();
}

void BucketReductions::label(const std::string& model) {
  model_ = model;
  flag_label_ = gradient_label(model, "flags");
  for (size_t b = 0; b < labels_.size(); ++b) labels_[b] = gradient_label(model, "bucket " + std::to_string(b));
}

void BucketReductions::extend() {
  const auto count = replica_.buckets().size();
  awaited_.resize(count);
  labels_.resize(count);
  writers_.resize(count);
  if (!stream_ && !replica_.device().is_cpu()) stream_ = device::stream_from_pool(replica_.device());
  label(model_);
  if (!hook_) return;
  hook_buckets_ = replica_.hook_buckets();
  hook_groups_.resize(count);
}

void BucketReductions::await_nothing() { std::fill(awaited_.begin(), awaited_.end(), 0); }

void BucketReductions::note_writer(size_t bucket) {
  if (stream_) writers_[bucket].add(replica_.device());
}

void BucketReductions::start_next(int64_t step) {
  const auto bucket = started();
  const auto group = in_step(group_, labels_[bucket], step);
  const device::StreamScope scope(kBucketStream, stream_);
  writers_[bucket].wait(kBucketWritten, replica_.device());
  if (!hook_) {
    finishes_.push_back(
        [work = group.start_all_reduce(replica_.buckets()[bucket], comm::ReduceOp::sum)]() mutable { work.wait(); });
  } else {
    const hook::BelowAutograd below;  // hooks see plain memory: no graph, no versions
    finishes_.push_back(hook_->start(hook_buckets_[bucket], hook_groups_[bucket] = group));
    if (!finishes_.back())
      throw UsageError("MU157", "start() of the communication hook '" + std::string(hook_->name()) +
                                    "' returned an empty function for " + labels_[bucket].text +
                                    "; return a function that waits and leaves the sum in bucket.flat");
  }
  if (bucket + 1 == replica_.buckets().size() && (hook_ || replica_.flags_are_apart())) start_flags(step);
}

void BucketReductions::start_flags(int64_t step) {
  flag_work_ = in_step(group_, flag_label_, step).start_all_reduce(replica_.flags(), comm::ReduceOp::sum);
}

void BucketReductions::wait() {
  const hook::BelowAutograd below;  // as in start_next()
  {
    const device::StreamScope scope(kBucketStream, stream_);
    for (auto& finish : finishes_) std::exchange(finish, nullptr)();
  }
  device::wait_stream(kAverage, device::current_stream(replica_.device()), stream_);
  flag_work_.wait();
  finishes_.clear();
}

void BucketReductions::discard() noexcept {
  const device::StreamScope scope(kBucketStream, stream_);
  for (auto& finish : std::exchange(finishes_, {})) try {
      if (finish) finish();
    } catch (...) {  // the group is unusable then, and its next operation says so
    }
}

void BucketReductions::reduce(size_t bucket, int64_t step) const {
  in_step(group_, labels_[bucket], step).all_reduce(replica_.buckets()[bucket], comm::ReduceOp::sum);
}

void BucketReductions::reduce_flags(int64_t step) {
  start_flags(step);
  flag_work_.wait();
}

void LateGradients::label(const std::string& model) { label_ = gradient_label(model, "late gradients"); }

void LateGradients::add(size_t i, const at::Tensor& gradient, at::Device device) {
  makers_.add(device);
  if (auto& late = gradients_[i]; late.defined()) late.add_(gradient);
  else late = gradient;
}

void LateGradients::average(const Replica& replica, const at::Tensor& scale, const comm::Communicator& group,
                            int64_t step) {
  const hook::BelowAutograd below;  // flat memory: nothing is recorded
  const auto late = std::exchange(gradients_, {});
  const auto& layout = replica.layout();
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const auto& span = layout.buckets[b];
    const auto sum = at::zeros({span.length}, replica.buckets()[b].options());
    for (const auto i : span.items) {
      const auto found = late.find(i);
      if (found == late.end()) continue;
      const auto& like = replica.parameters()[i].gradient;
      sum.as_strided(like.sizes(), like.strides(), layout.offsets[i] - span.begin).copy_(at::mul(found->second, scale));
    }
    in_step(group, label_, step).all_reduce(sum, comm::ReduceOp::sum);
    replica.buckets()[b].narrow(0, 0, span.length).add_(sum);
  }
  std::exchange(makers_, {}).wait_for_current(kLateFreed, replica.device());
}

void ReductionFlags::write(const Replica& replica, bool due, bool broken, bool late, bool unfrozen, unsigned bits) {
  const auto& parameters = replica.parameters();
  const auto own = at::empty({count(parameters.size())}, at::kDouble);
  auto* next = own.mutable_data_ptr<double>();
  // Through the impl, because Tensor::grad() would first ask autograd whether it is a leaf.
  const auto has_gradient = [](const auto& one) { return one.tensor.unsafeGetTensorImpl()->grad().defined(); };
  for (const auto& one : parameters) *next++ = has_gradient(one);
  for (const auto& one : parameters) *next++ = !has_gradient(one) && due && one.tensor.requires_grad();
  for (const bool flag : {broken, late, unfrozen, due}) *next++ = flag;
  for (size_t b = 0; b < Piggyback::kBits; ++b) *next++ = (bits >> b) & 1U;
  for (const auto& one : parameters) *next++ = due && !one.tensor.requires_grad();
  const hook::BelowAutograd below;  // no graph has saved this memory
  replica.flags().copy_(own);
}

ReductionFlags ReductionFlags::read(const Replica& replica) {
  const auto parameters = replica.parameters().size();
  if (parameters == 0) return {};
  const auto flags = replica.flags().to(at::kCPU, at::kDouble);
  const auto* next = flags.const_data_ptr<double>();
  const auto read_each = [&](std::vector<double>& sums) {
    sums.assign(next, next + parameters);
    next += parameters;
  };
  ReductionFlags sums;
  read_each(sums.used);
  read_each(sums.unused);
  for (bool* flag : {&sums.broken, &sums.late, &sums.unfrozen}) *flag = *next++ > 0;
  sums.due = *next++;
  for (size_t b = 0; b < Piggyback::kBits; ++b)
    if (*next++ > 0) sums.bits |= 1U << b;
  read_each(sums.frozen);
  return sums;
}

bool ReductionFlags::any() const {
  return std::any_of(used.begin(), used.end(), [](double ranks) { return ranks > 0; });
}

std::string ReductionFlags::frozen_on_some(const Replica& replica) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < frozen.size(); ++i)
    if (frozen[i] > 0 && frozen[i] < due) names.push_back(replica.parameters()[i].name);
  return first_names(names, quoted);
}

std::string ReductionFlags::missing(const Replica& replica) const {
  std::vector<std::string> nowhere, somewhere;
  for (size_t i = 0; i < unused.size(); ++i)
    if (unused[i] > 0) (used[i] > 0 ? somewhere : nowhere).push_back(replica.parameters()[i].name);
  std::string text;
  if (!nowhere.empty()) text += "no rank has a gradient for " + first_names(nowhere, quoted);
  if (!somewhere.empty())
    text += (text.empty() ? "" : "; ") + ("only some ranks have a gradient for " + first_names(somewhere, quoted));
  return text;
}

}  // namespace muster::parallel
