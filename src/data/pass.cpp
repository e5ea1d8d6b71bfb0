#include "pass.h"

#include "muster/base/error.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <string>
#include <utility>

namespace muster::data {
namespace {

// Memory is used again only where nobody else can see it: no other tensor, view or saved variable, and no foreign owner.
bool is_ours_alone(const at::Tensor& t) {
  return t.use_count() == 1 && t.weak_use_count() <= 1 && t.has_storage() && t.storage().use_count() == 1 &&
         t.storage().resizable() && !t.requires_grad() && !t.is_inference() && t.is_cpu();
}

void drop_shared_tensors(BatchBox& box) {
  box.visit([](at::Tensor& t) {
    if (t.defined() && !is_ours_alone(t)) t.reset();
  });
}

}  // namespace

RunningPass::RunningPass(Plan plan, std::shared_ptr<Progress> progress)
    : mover_(plan.shard.device, plan.shard.non_blocking), plan_(std::move(plan)), position_(progress->next_start),
      progress_(std::move(progress)) {
  if (plan_.options.workers > 0 && position_ < plan_.size) {
    const WorkerQueue::Settings settings{.capacity = std::max<int64_t>(1, plan_.options.prefetch) * plan_.options.workers,
                                         .first = position_,
                                         .last = plan_.size,
                                         .pinned = plan_.pinned,
                                         .random = plan_.random,
                                         .timeout = plan_.options.timeout};
    workers_ = std::make_unique<WorkerQueue>(settings, plan_.order, plan_.makers);
  }
  progress_->running = this;
  progress_->next_start = 0;
  progress_->position = position_;
}

RunningPass::~RunningPass() { end(); }

void RunningPass::end() noexcept {
  ended_ = true;
  workers_.reset();
  if (progress_->running != this) return;
  progress_->running = nullptr;
  progress_->last = false;
}

void RunningPass::release() {
  if (!current_.box) return;
  if (mover_.active()) {
    current_.box.reset();
    return;
  }
  drop_shared_tensors(*current_.box);
  if (workers_) workers_->recycle(std::move(current_.box));
  else spare_ = std::move(current_.box);
}

MadeBatch RunningPass::fetch() {
  if (workers_) return workers_->take();
  MadeBatch made{.box = std::move(spare_), .real_samples = plan_.order->fill(position_, indices_)};
  if (!made.box) made.box = plan_.makers.front()->new_box();
  // Data needs no gradients: below autograd a small operator costs a fifth less.
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  plan_.makers.front()->make({.indices = indices_, .pinned = plan_.pinned, .random = plan_.random}, *made.box);
  return made;
}

BatchBox* RunningPass::hand_out(MadeBatch made) {
  current_ = std::move(made);
  ++position_;
  progress_->position = position_;
  progress_->real_samples = current_.real_samples;
  progress_->last = position_ == plan_.size;
  return current_.box.get();
}

BatchBox* RunningPass::finish() {
  if (finished_) return nullptr;
  finished_ = true;
  workers_.reset();
  progress_->last = false;
  progress_->position = 0;
  if (progress_->epoch == plan_.random.epoch()) ++progress_->epoch;
  return nullptr;
}

BatchBox* RunningPass::next() {
  if (ended_)
    throw UsageError("MU106", "this pass over a loader is over: another one was begun while it ran, or it failed. Give a loop inside a "
                              "loop over the same data a loader of its own");
  release();
  if (position_ >= plan_.size) return finish();
  try {
    auto made = ahead_ ? std::move(*ahead_) : fetch();
    if (!ahead_) mover_.start(*made.box);
    ahead_.reset();
    mover_.finish(*made.box);
    if (mover_.active() && workers_ && (ahead_ = workers_->try_take())) mover_.start(*ahead_->box);
    return hand_out(std::move(made));
  } catch (...) {
    end();
    throw;
  }
}

}  // namespace muster::data
