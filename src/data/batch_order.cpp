#include "batch_order.h"

#include <numeric>

#include "muster/base/error.h"

namespace muster::data {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t checked(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return index;
  throw UsageError("MU109", "the sampler gave index " + std::to_string(index) + ", but the dataset has " +
                                std::to_string(size) + " samples; make it give indices from 0 to " +
                                std::to_string(size - 1));
}

/// Number of samples skipped between two checks of the stop flag.
constexpr int64_t kSkippedAtOnce = 4096;

bool seen(const std::atomic<bool>* stop) { return stop && stop->load(std::memory_order_relaxed); }

/// Each step as one batch of a single rank, never padded.
SplitPlan plan_of_steps(const BatchSplit& split, int64_t offset) {
  return SplitPlan(
      {.batch_size = SplitPlan(split).step_size(), .drop_last = split.drop_last, .offset = offset, .size = split.size});
}

}  // namespace

SplitPlan::SplitPlan(const BatchSplit& split) : split_(split) {
  if (split.world_size < 1 || split.rank < 0 || split.rank >= split.world_size)
    throw ConfigError(
        "MU107", "rank " + std::to_string(split.rank) + " is not in a world of " + std::to_string(split.world_size));
  if (split.batch_size < 1)
    throw ConfigError("MU107",
                      "a loader's batch_size is " + std::to_string(split.batch_size) + "; give one of at least 1");
  if (split.world_size == 1) {
    split_.split_batches = false;
    split_.even = false;
    split_.filler = false;
  }
  if (split_.filler) split_.even = false;
  if (split_.split_batches && split.batch_size % split.world_size != 0)
    throw ConfigError("MU107", "split_batches cannot split batches of " + std::to_string(split.batch_size) + " into " +
                                   std::to_string(split.world_size) +
                                   " equal pieces; give a batch_size that is a multiple of the world size");
}

int64_t SplitPlan::local_batch_size() const {
  return split_.split_batches ? split_.batch_size / split_.world_size : split_.batch_size;
}

int64_t SplitPlan::step_size() const { return local_batch_size() * split_.world_size; }

int64_t SplitPlan::batches() const {
  const int64_t steps = (split_.size - split_.offset) / step_size();
  const int64_t rest = (split_.size - split_.offset) % step_size();
  if (split_.drop_last || rest == 0) return steps;
  if (split_.even || split_.filler) return steps + 1;
  return steps + (rest > split_.rank * piece_size(steps) ? 1 : 0);
}

/// The number of samples that a rank gets in this step (fewer at the end of the data).
int64_t SplitPlan::piece_size(int64_t batch) const {
  const int64_t left = split_.size - start_of(batch);
  return split_.dispatch && left < step_size() ? ceil_div(left, split_.world_size) : local_batch_size();
}

OrderRange SplitPlan::order_range(int64_t batch) const {
  const int64_t piece = piece_size(batch);
  const int64_t start = start_of(batch) + split_.rank * piece;
  const bool whole = split_.even || (split_.filler && start >= split_.size);
  return {whole ? piece : std::min(piece, split_.size - start), start};
}

int64_t SplitPlan::total(int64_t batch, int64_t real) const {
  const int64_t piece = piece_size(batch);
  if (split_.even) return piece * split_.world_size;
  return split_.filler ? real + (split_.world_size - ceil_div(real, piece)) * piece : real;
}

StepSamples SplitPlan::samples(int64_t batch) const {
  const auto [count, start] = order_range(batch);
  const int64_t left = split_.size - start_of(batch), real = std::min(step_size(), left);
  const int64_t rest = split_.drop_last || batch + 1 < batches() ? 0 : left - real;
  const bool every_rank = split_.even || split_.filler || left > (split_.world_size - 1) * piece_size(batch);
  return {.every_rank = every_rank,
          .local = count,
          .local_real = std::clamp<int64_t>(split_.size - start, 0, count),
          .real = real,
          .left = rest,
          .total = total(batch, real)};
}

int64_t SplitPlan::padding() const {
  if (batches() == 0) return 0;
  const auto last = order_range(batches() - 1);
  return std::max<int64_t>(0, last.start + last.count - split_.size);
}

SplitPlan plan_of_batches(BatchSplit split) {
  if (split.split_batches && split.world_size > 1)
    throw ConfigError("MU107",
                      "split_batches cannot split batches that are ready-made or a batch sampler's, whose sizes vary; "
                      "make one batch per rank");
  split.even = split.even || split.filler;  // batches stay whole, so a padded step repeats whole batches
  split.filler = false;
  return SplitPlan(split);
}

bool IndexOrder::prepare(int64_t batch, BatchContent& content) {
  if (batch >= batches_) return false;
  content.samples = fill(batch, content.indices);
  content.last = batch + 1 == batches_;
  return true;
}

ComputedOrder::ComputedOrder(const SplitPlan& plan, bool shuffle, uint64_t seed, int64_t epoch)
    : IndexOrder(plan.batches()), permutation_(plan.size(), seed, epoch), plan_(plan), shuffle_(shuffle) {}

StepSamples ComputedOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto [count, start] = plan_.order_range(batch);
  const int64_t size = plan_.size();
  indices.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t order_index = start + i < size ? start + i : (start + i) % size;
    indices[i] = shuffle_ ? permutation_(order_index) : order_index;
  }
  return plan_.samples(batch);
}

SampledOrder::SampledOrder(const SplitPlan& plan, std::shared_ptr<Sampler> sampler, int64_t dataset_size, int64_t epoch,
                           int64_t first_batch)
    : IndexOrder(plan.batches()), dataset_size_(dataset_size), plan_(plan), sampler_(std::move(sampler)) {
  head_.resize(std::min(plan_.padding(), plan_.size()));
  if (!head_.empty()) {
    sampler_->start(epoch);
    for (auto& index : head_) index = checked(sampler_->next(), dataset_size_);
  }
  sampler_->start(epoch);
  if (first_batch == 0 || first_batch >= plan_.batches()) return;
  cursor_ = std::min(plan_.order_range(first_batch).start, plan_.size());
  sampler_->seek(cursor_);
}

StepSamples SampledOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto [count, start] = plan_.order_range(batch);
  for (; cursor_ < std::min(start, plan_.size()); ++cursor_) sampler_->next();
  indices.clear();
  for (int64_t order_index = start; order_index < start + count; ++order_index) {
    if (order_index >= plan_.size()) {
      indices.push_back(head_[order_index % plan_.size()]);
    } else {
      indices.push_back(checked(sampler_->next(), dataset_size_));
      ++cursor_;
    }
  }
  return plan_.samples(batch);
}

BatchSampledOrder::BatchSampledOrder(const SplitPlan& plan, std::shared_ptr<BatchSampler> sampler, int64_t dataset_size,
                                     int64_t epoch, int64_t first_batch)
    : IndexOrder(plan.batches()), dataset_size_(dataset_size), plan_(plan), sampler_(std::move(sampler)) {
  const auto& split = plan_.split();
  if (plan_.pads() && plan_.ends_short()) {
    sampler_->start(epoch);
    for (int64_t i = 0; i < std::min<int64_t>(split.world_size, split.size); ++i) head_.push_back(sampler_->next());
  }
  sampler_->start(epoch);
  const int64_t first = split.offset + first_batch * split.world_size;
  if (first > 0 && first_batch < plan_.batches()) sampler_->seek(first);
}

StepSamples BatchSampledOrder::fill(int64_t batch, std::vector<int64_t>& indices) {
  const auto& split = plan_.split();
  StepSamples samples;
  for (int r = 0; r < split.world_size; ++r) {
    const int64_t global = split.offset + batch * split.world_size + r;
    const bool padding = global >= split.size;
    if (padding && head_.empty()) {
      samples.every_rank = false;
      break;
    }
    auto next = padding ? head_[(global - split.size) % head_.size()] : sampler_->next();
    const auto count = static_cast<int64_t>(next.size());
    samples.total += count;
    if (!padding) samples.real += count;
    if (r != split.rank) continue;
    samples.local = count;
    samples.local_real = padding ? 0 : count;
    indices = std::move(next);
  }
  for (const int64_t index : indices) checked(index, dataset_size_);
  if (batch + 1 == plan_.batches() && !split.drop_last)
    for (int64_t global = split.offset + (batch + 1) * split.world_size; global < split.size; ++global)
      samples.left += static_cast<int64_t>(sampler_->next().size());
  return samples;
}

StreamOrder::StreamOrder(std::shared_ptr<BatchMaker> maker, Settings settings)
    : maker_(std::move(maker)), reader_(maker_->stream()), settings_(std::move(settings)) {
  const auto& split = settings_.split;
  const SplitPlan plan(split);
  step_size_ = plan.step_size();
  from_ = split.dispatch ? 0 : split.rank * plan.local_batch_size();
  to_ = split.dispatch ? step_size_ : from_ + plan.local_batch_size();
  if (plan.pads()) head_size_ = split.dispatch ? split.world_size : to_;
}

SplitPlan StreamOrder::plan(int rank, const Step& step) const {
  auto split = settings_.split;
  split.rank = rank;
  split.size = start_of(step.number) + step.real;
  return SplitPlan(split);
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
  if (step.real == 0 || (settings_.split.drop_last && step.real < step_size_)) return;
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
  const auto& split = settings_.split;
  const int64_t parts = split.dispatch ? split.world_size : 1;
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
  const int rank = split.dispatch ? static_cast<int>((batch + 1) % parts) : split.rank;
  if (!split.dispatch && !has_part(rank, *now_)) return false;
  take_part(rank, content);
  const auto all = plan(0, *now_).samples(now_->number);
  content.samples = has_part(rank, *now_) ? plan(rank, *now_).samples(now_->number)
                                          : StepSamples{.real = all.real, .total = all.total};
  content.last = !failed_ && !(next_ && has_part(rank, *next_));
  if (content.last && next_) content.samples.left = next_->real;
  content.state = now_->state;
  return true;
}

DispatchedOrder::DispatchedOrder(const BatchSplit& split, int64_t first_step, const Whole& whole) : split_(split) {
  // The order in use is made second: a sampler can have only one position.
  const auto from_begin = plan_of_steps(split, 0);
  if (SplitPlan(split).pads() && from_begin.batches() > 0) whole(from_begin, 0)->fill(0, head_);
  whole_ = whole(plan_of_steps(split, split.offset), first_step);
}

SplitPlan DispatchedOrder::plan(int rank) const {
  auto split = split_;
  split.rank = rank;
  return SplitPlan(split);
}

bool DispatchedOrder::prepare(int64_t batch, BatchContent& content) {
  const int64_t step = batch / split_.world_size;
  if (batch % split_.world_size == 0 && !whole_->prepare(step, step_)) return false;
  content.indices.clear();
  const auto own = plan(static_cast<int>((batch + 1) % split_.world_size));
  content.last = step + 1 >= own.batches();
  content.none = step >= own.batches();
  if (content.none) {
    const auto all = plan(0).samples(step);
    content.samples = {.real = all.real, .total = all.total};
    return true;
  }
  content.samples = own.samples(step);
  const auto [count, start] = own.order_range(step);
  const int64_t first = own.start_of(step);
  for (int64_t p = start; p < start + count; ++p)
    content.indices.push_back(p < own.size() ? step_.indices[p - first] : head_[p % own.size()]);
  return true;
}

void ReadyBatchEnds::add(int64_t samples) {
  if (samples < 1)
    throw ConfigError("MU323", "batch " + std::to_string(ends_.size()) +
                                   " of muster::Batches has no samples: the first dimension of its first tensor is 0; "
                                   "leave the batch out");
  ends_.push_back(this->samples() + samples);
}

size_t ReadyBatchEnds::batch_of(int64_t sample) const {
  return static_cast<size_t>(std::ranges::upper_bound(ends_, sample) - ends_.begin());
}

ReadyBatchSampler::ReadyBatchSampler(const ReadyBatchEnds& batches, bool shuffle, uint64_t seed, int64_t epoch)
    : ends_(batches.ends()), permutation_(static_cast<int64_t>(ends_.size()), seed, epoch), shuffle_(shuffle) {}

std::vector<int64_t> ReadyBatchSampler::next() {
  const auto batch = static_cast<size_t>(shuffle_ ? permutation_(position_) : position_);
  ++position_;
  const int64_t begin = batch == 0 ? 0 : ends_[batch - 1];
  std::vector<int64_t> samples(static_cast<size_t>(ends_[batch] - begin));
  std::iota(samples.begin(), samples.end(), begin);
  return samples;
}

}  // namespace muster::data
