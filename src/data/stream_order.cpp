#include "stream_order.h"

#include <algorithm>
#include <utility>

namespace muster::data {
namespace {

/// Number of samples skipped between two checks of the stop flag.
constexpr int64_t kSkippedAtOnce = 4096;

bool seen(const std::atomic<bool>* stop) { return stop && stop->load(std::memory_order_relaxed); }

}  // namespace

StreamOrder::StreamOrder(std::shared_ptr<BatchMaker> maker, Settings settings)
    : maker_(std::move(maker)), reader_(maker_->stream()), settings_(std::move(settings)) {
  const auto& sharding = settings_.sharding;
  const ShardPlan plan(sharding);
  step_size_ = plan.step_size();
  from_ = sharding.dispatch ? 0 : sharding.rank * plan.local_batch_size();
  to_ = sharding.dispatch ? step_size_ : from_ + plan.local_batch_size();
  if (plan.pads()) head_size_ = sharding.dispatch ? sharding.world_size : to_;
}

ShardPlan StreamOrder::plan(int rank, const Step& step) const {
  auto sharding = settings_.sharding;
  sharding.rank = rank;
  sharding.size = start_of(step.number) + step.real;
  return ShardPlan(sharding);
}

bool StreamOrder::has_part(int rank, const Step& step) const { return step.number < plan(rank, step).batches(); }

bool StreamOrder::read_one(Records& to) {
  try {
    // Differs from the seeds of the transforms of samples.
    settings_.random.seed_operators(~position_);
    ended_ = ended_ || !reader_->read(to);
  } catch (...) {
    throw_dataset_error(position_, false);
  }
  if (!ended_) ++position_;
  return !ended_;
}

bool StreamOrder::skip_to(int64_t position, const std::atomic<bool>* stop) {
  while (!ended_ && position_ < position && !seen(stop)) {
    try {
      settings_.random.seed_operators(~position_);
      const int64_t wanted = std::min(position - position_, kSkippedAtOnce);
      const int64_t skipped = reader_->skip(wanted);
      ended_ = skipped < wanted;
      position_ += skipped;
    } catch (...) {
      throw_dataset_error(position_, false);
    }
  }
  return position_ >= position;
}

bool StreamOrder::start(const std::atomic<bool>* stop) {
  started_ = true;
  reader_->start(settings_.random.epoch());
  head_ = reader_->new_records();
  while (position_ < head_size_ && !seen(stop) && read_one(*head_)) {}
  const int64_t first = start_of(settings_.first_step);
  if (first > 0 && !settings_.state.empty()) {
    maker_->load_state(settings_.state);
    position_ = first;
    ended_ = false;
  }
  if (position_ < first && !skip_to(first, stop)) return false;
  read_step(settings_.first_step, stop);
  return true;
}

/// Reads this step into `next_`; leaves it empty if the pass has ended before the step.
void StreamOrder::read_step(int64_t number, const std::atomic<bool>* stop) {
  next_.reset();
  Step step{.kept = reader_->new_records(), .number = number, .real = 0, .state = {}};
  const int64_t start = start_of(number);
  // Samples of the head that belong to this step have been read already.
  for (int64_t p = start + from_; p < std::min(position_, start + to_); ++p) step.kept->append(*head_, p);
  skip_to(start + from_, stop);
  while (position_ < start + to_ && !seen(stop) && read_one(*step.kept)) {}
  skip_to(start + step_size_, stop);
  step.real = std::clamp<int64_t>(position_ - start, 0, step_size_);
  if (step.real == 0 || (settings_.sharding.drop_last && step.real < step_size_)) return;
  step.state = maker_->state();
  next_ = std::move(step);
}

void StreamOrder::take_part(int rank, BatchContent& content) const {
  content.indices.clear();
  content.records = reader_->new_records();
  if (!has_part(rank, *now_)) return;
  const auto plan = this->plan(rank, *now_);
  const auto [count, start] = plan.order_range(now_->number);
  const int64_t kept_from = start_of(now_->number) + from_;
  for (int64_t p = start; p < start + count; ++p) {
    const bool real = p < plan.size();
    const int64_t index = real ? p : p % plan.size();
    content.indices.push_back(index);
    real ? content.records->append(*now_->kept, p - kept_from) : content.records->append(*head_, index);
  }
}

bool StreamOrder::prepare(int64_t batch, BatchContent& content) {
  const auto& sharding = settings_.sharding;
  const int64_t parts = sharding.dispatch ? sharding.world_size : 1;
  if (batch % parts == 0) {
    if (!started_ && !start(content.stop)) return false;
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
    now_ = std::exchange(next_, std::nullopt);
    if (!now_ || seen(content.stop)) return false;
    try {
      read_step(now_->number + 1, content.stop);
    } catch (...) {
      failed_ = std::current_exception();
    }
  }
  const int rank = sharding.dispatch ? static_cast<int>((batch + 1) % parts) : sharding.rank;
  if (!sharding.dispatch && !has_part(rank, *now_)) return false;
  take_part(rank, content);
  const auto all = plan(0, *now_).samples(now_->number);
  content.samples = has_part(rank, *now_) ? plan(rank, *now_).samples(now_->number)
                                          : StepSamples{.real = all.real, .total = all.total};
  content.last = !failed_ && !(next_ && has_part(rank, *next_));
  if (content.last && next_) content.samples.left = next_->real;
  content.state = now_->state;
  return true;
}

}  // namespace muster::data
