#include "pass.h"

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/data/dataset.h"
#include "muster/track/trace.h"
#include "muster/tree/detail/pack.h"
#include "muster/tree/detail/visit.h"

namespace muster::data {
namespace {

/// Whether the tensor's memory may be reused: no other tensor, view, saved variable or foreign owner can see it.
bool is_ours_alone(const at::Tensor& t) {
  return t.use_count() == 1 && t.weak_use_count() <= 1 && t.has_storage() && t.storage().use_count() == 1 &&
         t.storage().resizable() && !t.requires_grad() && !t.is_inference() && t.is_cpu();
}

constexpr device::SyncPoint kOwnStream{"batches: copies run on a stream of their own"};
constexpr device::SyncPoint kMade{"batches: copies come after what a worker did on the device"};
constexpr device::SyncPoint kCopy{"batches: from pinned memory to the device"};
constexpr device::SyncPoint kArrived{"batches: the current stream reads after the copy"};
constexpr device::SyncPoint kMemory{"batches: memory of the copying stream is in use by the current one"};
constexpr device::SyncPoint kGiven{"batches: a dataset writes pinned memory of its own after the copy"};
constexpr device::SyncPoint kReuse{"batches: pinned memory is written again after its copy"};

/// Limit on kept boxes. Usually copies are faster than steps; if they are not, further memory goes to LibTorch's
/// allocator.
constexpr std::size_t kMostKept = 8;

void warn_of_repeats(const StepSamples& step) {
  log::warning(step.total - step.real, " of the last step's ", step.total,
               " samples are repeated, so that all ranks get equal batches. gather_for_metrics and a "
               "collector leave them out; gradients and sums by reduce or gather count them. With even_batches = false "
               "or drop_last = true there are none");
}

}  // namespace

DeviceMover::DeviceMover(at::Device device, device::Stream stream, bool pinned, bool non_blocking)
    : device_(device), non_blocking_(non_blocking), pinned_(pinned), stream_(stream) {}

BatchCopy DeviceMover::start(BatchBox& box, const device::Event& made) {
  BatchCopy copy;
  if (!stream_) return copy;
  const device::StreamScope on_own_stream(kOwnStream, stream_);
  device::stream_wait(kMade, made, device_);
  const bool later = non_blocking_ && device::passes(kCopy, device::SyncKind::async_copy);
  bool given = false;
  box.visit([&](at::Tensor& t) {
    const auto* before = t.unsafeGetTensorImpl();
    if (pinned_ && t.defined() && t.is_cpu()) t = t.pin_memory();
    const bool ours = t.defined() && is_ours_alone(t);
    given = given || (!ours && t.unsafeGetTensorImpl() == before && t.defined() && t.is_cpu() && t.is_pinned());
    copy.sources.push_back(pinned_ && ours ? t : at::Tensor());
    t = tree::moved(t, device_, later);
  });
  copy.done = device::record(device_);
  if (given) last_copy_ = device::record(device_);
  return copy;
}

void DeviceMover::wait_for_given() { device::host_wait(kGiven, std::exchange(last_copy_, std::nullopt)); }

void DeviceMover::finish(BatchBox& box, const BatchCopy& copy) {
  if (!stream_) return;
  device::stream_wait(kArrived, copy.done, device_);
  // The memory came from the copying stream's pool; the allocator must learn that the current stream uses it too.
  box.visit([this](at::Tensor& t) { device::record_stream(kMemory, t, device_); });
}

void DeviceMover::keep(std::unique_ptr<BatchBox> box, BatchCopy copy) {
  std::size_t next = 0;
  box->visit([&](at::Tensor& t) {
    t = next < copy.sources.size() ? std::move(copy.sources[next]) : at::Tensor();
    ++next;
  });
  // The user may have changed the number of tensors.
  if (next == copy.sources.size() && kept_.size() < kMostKept) kept_.push_back({std::move(box), std::move(copy.done)});
}

std::unique_ptr<BatchBox> DeviceMover::take() {
  if (kept_.empty() || !device::query(kReuse, kept_.front().done)) return nullptr;
  auto box = std::move(kept_.front().box);
  kept_.pop_front();
  return box;
}

OpenPass::OpenPass(std::shared_ptr<Progress> progress, std::shared_ptr<Trace> trace)
    : epoch_(progress->epoch), position_(progress->next_start), progress_(std::move(progress)),
      trace_(std::move(trace)) {
  progress_->running = this;
  progress_->position = position_;
  progress_->offset = progress_->next_offset;
  progress_->state = progress_->next_state;
  progress_->next_start = progress_->next_offset = 0;
  progress_->next_state.clear();
}

void OpenPass::end() noexcept {
  ended_ = true;
  stop();
  if (progress_->running != this) return;
  progress_->running = nullptr;
  progress_->last = false;
}

BatchBox* OpenPass::next() {
  std::optional<TraceScope> waiting;
  if (trace_) waiting.emplace(*trace_, "waiting for data");
  if (ended_)
    throw UsageError(
        "MU106",
        "this pass over a loader is over: another one was begun while it ran, or it failed. Give a loop inside a "
        "loop over the same data a loader of its own");
  try {
    return advance();
  } catch (...) {
    end();
    throw;
  }
}

void OpenPass::deliver(const MadeBatch& made) {
  ++position_;
  progress_->position = position_;
  progress_->samples = made.samples;
  progress_->last = made.last;
  progress_->state = made.state;
  if (made.samples.total > made.samples.real && std::exchange(progress_->warns_of_repeats, false))
    warn_of_repeats(made.samples);
}

BatchBox* OpenPass::finish() {
  if (finished_) return nullptr;
  finished_ = true;
  stop();
  progress_->last = false;
  progress_->position = progress_->offset = 0;
  progress_->state.clear();
  if (progress_->epoch == epoch_) ++progress_->epoch;
  return nullptr;
}

RunningPass::RunningPass(PassPlan plan, std::shared_ptr<Progress> progress)
    : OpenPass(std::move(progress), plan.split.trace),
      mover_(plan.split.device, plan.copying, plan.pinned, plan.split.non_blocking), plan_(std::move(plan)) {
  if (plan_.options.workers == 0) return;
  const WorkerQueue::Settings settings{.capacity = std::max<int64_t>(1, plan_.options.prefetch) * plan_.options.workers,
                                       .device = plan_.split.device,
                                       .first = position(),
                                       .pinned = plan_.pinned,
                                       .random = plan_.random,
                                       .timeout = plan_.options.timeout};
  workers_ = std::make_unique<WorkerQueue>(settings, plan_.order, plan_.makers);
}

RunningPass::~RunningPass() { end(); }

void RunningPass::stop() noexcept { workers_.reset(); }

void RunningPass::release() {
  current_.indices.clear();
  if (current_.box && mover_.active()) {
    mover_.keep(std::move(current_.box), std::move(copy_));
  } else if (current_.box) {
    current_.box->visit([](at::Tensor& t) {
      if (t.defined() && !is_ours_alone(t)) t.reset();
    });
    if (workers_) workers_->recycle(std::move(current_.box));
    else spare_ = std::move(current_.box);
  }
  if (!workers_) return;
  while (auto box = mover_.take()) workers_->recycle(std::move(box));
}

std::optional<MadeBatch> RunningPass::fetch() {
  if (workers_) return workers_->take();
  const DatasetScope scope;
  auto& maker = *plan_.makers.front();
  if (!maker.ready_batches()) mover_.wait_for_given();  // ready-made batches are never written again
  if (!plan_.order->prepare(position(), content_)) return std::nullopt;
  MadeBatch made{.box = mover_.active() ? mover_.take() : std::move(spare_), .last = false, .samples = {}, .state = {}};
  make_batch(maker, content_, plan_.random, plan_.pinned, made);
  return made;
}

BatchBox* RunningPass::advance() {
  release();
  if (plan_.options.workers > 0 && !workers_) return finish();
  auto made = ahead_ ? std::move(ahead_) : fetch();
  if (!made) return finish();
  copy_ = ahead_ ? std::move(copy_ahead_) : mover_.start(*made->box, made->made);
  ahead_.reset();
  mover_.finish(*made->box, copy_);
  if (mover_.active() && workers_) ahead_ = workers_->try_take();
  if (mover_.active() && ahead_) copy_ahead_ = mover_.start(*ahead_->box, ahead_->made);
  current_ = std::move(*made);
  deliver(current_);
  return current_.box.get();
}

namespace {

/// The message to a rank for one step: a batch, or a note that there is none, or the failure.
struct Message {
  at::Tensor batch = {};
  std::string failure = {};
  int64_t failed_index = -1;
  bool last = true;  ///< this is the rank's last batch
  bool over = true;  ///< no rank gets another batch
  StepSamples samples = {};
};

Message message_of(const BatchBox* box, const Progress& read) {
  if (!box) return {};
  return {.batch = read.samples.local > 0 ? box->pack() : at::Tensor(),
          .last = read.last,
          .over = false,
          .samples = read.samples};
}

Message failure_of(const std::exception& error) {
  const auto* cause = dynamic_cast<const DatasetError*>(&error);
  return {.failure = error.what(), .failed_index = cause ? cause->index() : -1};
}

}  // namespace

DispatchedPass::DispatchedPass(PassPlan plan, const std::shared_ptr<Progress>& progress)
    : OpenPass(progress, plan.split.trace), group_(plan.split.group->internal("batches that rank 0 reads")),
      maker_(plan.makers.front()), mover_(plan.split.device, plan.copying, plan.pinned, plan.split.non_blocking) {
  if (group_.rank() != 0) return;
  read_ = std::make_shared<Progress>();
  read_->epoch = progress->epoch;
  read_->next_start = position() * group_.size();
  plan.split.device = at::kCPU;
  plan.split.trace = nullptr;
  plan.pinned = false;
  reading_ = std::make_unique<RunningPass>(std::move(plan), read_);
}

DispatchedPass::~DispatchedPass() { end(); }

void DispatchedPass::stop() noexcept { reading_.reset(); }

BatchBox* DispatchedPass::advance() {
  if (over_) return finish();
  auto* box = group_.rank() == 0 ? read_and_send() : receive();
  over_ = over_ || !box;
  if (!box) return finish();
  mover_.finish(*box, mover_.start(*box));
  return box;
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
