#include "dispatched_pass.h"

#include <exception>
#include <utility>

#include "muster/base/error.h"
#include "muster/data/dataset_error.h"
#include "muster/tree/detail/pack.h"

namespace muster::data {
namespace {

/// The message to a rank for one step: a batch, or a note that there is none, or the failure.
struct Message {
  at::Tensor batch;
  std::string failure;
  int64_t failed_index = -1;
  bool last = true;  ///< this is the rank's last batch
  bool over = true;  ///< no rank gets another batch
  StepSamples samples;
};

Message message_of(const BatchBox* box, const Progress& read) {
  if (!box) return {};
  const auto& samples = read.samples;
  return {.batch = samples.local > 0 ? box->pack() : at::Tensor(),
          .failure = {},
          .failed_index = -1,
          .last = read.last,
          .over = false,
          .samples = samples};
}

Message failure_of(const std::exception& error) {
  const auto* cause = dynamic_cast<const DatasetError*>(&error);
  return {.batch = {}, .failure = error.what(), .failed_index = cause ? cause->index() : -1, .samples = {}};
}

}  // namespace

DispatchedPass::DispatchedPass(PassPlan plan, const std::shared_ptr<Progress>& progress)
    : OpenPass(progress), group_(plan.shard.group->internal("batches that rank 0 reads")), maker_(plan.makers.front()),
      mover_(plan.shard.device, plan.copying, plan.pinned, plan.shard.non_blocking) {
  if (group_.rank() != 0) return;
  read_ = std::make_shared<Progress>();
  read_->epoch = progress->epoch;
  read_->next_start = position() * group_.size();
  plan.shard.device = at::kCPU;
  plan.pinned = false;
  reading_ = std::make_unique<RunningPass>(std::move(plan), read_);
}

DispatchedPass::~DispatchedPass() { end(); }

void DispatchedPass::stop() noexcept { reading_.reset(); }

BatchBox* DispatchedPass::next() {
  require_open();
  if (over_) return finish();
  try {
    auto* box = group_.rank() == 0 ? read_and_send() : receive();
    over_ = over_ || !box;
    if (!box) return finish();
    mover_.finish(*box, mover_.start(*box));
    return box;
  } catch (...) {
    end();
    throw;
  }
}

BatchBox* DispatchedPass::read_and_send() {
  std::vector<Message> messages(group_.size());
  BatchBox* own = nullptr;
  std::exception_ptr failed;
  if (!maker_->ready_batches()) mover_.wait_for_given();  // ready-made batches are never written again
  try {
    for (int rank = 1; rank < group_.size(); ++rank) messages[rank] = message_of(reading_->next(), *read_);
    own = reading_->next();
    over_ = !own || read_->last;
    for (auto& message : messages) message.over = over_;
  } catch (const std::exception& error) {
    failed = std::current_exception();
    for (auto& message : messages) message = failure_of(error);
  }
  std::vector<at::Tensor> parts;
  for (const auto& message : messages) parts.push_back(tree::pack(message));
  group_.scatter(parts, 0);
  if (failed) std::rethrow_exception(failed);
  if (!own) return nullptr;
  deliver({.box = nullptr, .last = read_->last, .samples = read_->samples, .state = read_->state});
  return own;
}

BatchBox* DispatchedPass::receive() {
  const auto message = tree::unpack<Message>(group_.scatter({}, 0));
  if (!message.failure.empty())
    throw DatasetError(message.failed_index, "rank 0, which reads for all ranks, failed: " + message.failure);
  over_ = message.over;
  if (!message.batch.defined()) return nullptr;
  if (!box_) box_ = maker_->new_box();
  box_->unpack(message.batch);
  deliver({.box = nullptr, .last = message.last, .samples = message.samples, .state = {}});
  return box_.get();
}

}  // namespace muster::data
