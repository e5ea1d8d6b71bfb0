#include "parallel/sharded/unit_gradients.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include "comm/shared_tensor.h"
#include "hook/below_autograd.h"
#include "muster/optim/detail/norm.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kReady{"fsdp: gradients are collected after what was in their place"};
constexpr device::SyncPoint kCollected{"fsdp: gradients are reduced after all streams that have collected them"};
constexpr device::SyncPoint kReduceStream{"fsdp: gradients are reduced on a stream of their own"};

void set_zero(const at::Tensor& run) {
  if (run.numel() == 0) return;
  if (run.device().is_cpu()) std::memset(run.mutable_data_ptr(), 0, run.nbytes());
  else run.zero_();
}

}  // namespace

UnitGradients::UnitGradients(const ShardLayout& layout, std::vector<int64_t> numels, const ShardGroups& groups,
                             const Options& options, BufferPool& buffers)
    : layout_(layout), groups_(groups), options_(options), buffers_(buffers), runs_(numels.size()),
      has_unsharded_grad_(numels.size()), scaled_(numels.size()), has_sharded_grad_(numels.size()),
      sent_flags_(options.value.device().is_cpu() ? 0 : numels.size() + 1) {
  const hook::BelowAutograd guard;
  const auto shard_numel = layout.shard_numel();
  int64_t end = 0;
  for (size_t i = 0; i < numels.size(); ++i) {
    const auto whole = layout.whole(i);
    end = whole.begin + whole.length;
    for (int row = 0; row < layout.world(); ++row) {
      const auto part = layout.part(i, row);
      if (part.length == 0) continue;
      const auto start = shard_numel * row + part.begin - whole.begin;
      runs_[i].push_back({row, part.begin, start, std::clamp<int64_t>(numels[i] - start, 0, part.length), part.length});
    }
  }
  for (int row = 0; row < layout.world(); ++row)
    if (const auto begin = std::max(end - shard_numel * row, int64_t{0}); begin < shard_numel)
      gaps_.push_back({row, begin, 0, shard_numel - begin, shard_numel - begin});
  set_divisor(groups.size());
  if (options.keeps_full) {
    const auto rows = layout.world() * row_length();
    rows_ = (options.on_all_ranks ? comm::shared_zeros(groups.shards, rows, options.value)
                                  : at::zeros({rows}, options.value))
                .view({layout.world(), row_length()});
    result_ = rows_.select(0, groups.shards.rank());
  } else {
    result_ = at::zeros({row_length()}, options.value);
  }
}

/// A divisor that is not split, because the dtype cannot overflow, stays in one piece.
void UnitGradients::set_divisor(double divisor) {
  divisor_ = divisor;
  divisor_before_ = options_.divisor_before == groups_.size() ? divisor : options_.divisor_before;
  scale_ = optim::wrapped_number(1.0 / divisor_before_);
}

int64_t UnitGradients::row_length() const {
  return layout_.shard_numel() + (flags_are_apart() ? 0 : static_cast<int64_t>(runs_.size()) + 1);
}

bool UnitGradients::holds_any_sum() const {
  return reduced_ || std::any_of(has_sharded_grad_.begin(), has_sharded_grad_.end(), [](char has) { return has != 0; });
}

at::Tensor UnitGradients::run(const at::Tensor& rows, const RowRun& at, int64_t length) const {
  return rows.as_strided({length}, {1}, at.row * row_length() + at.offset_in_row);
}

at::Tensor UnitGradients::part_of(const at::Tensor& row, size_t i) const {
  const auto mine = layout_.part(i, groups_.shards.rank());
  return row.narrow(0, mine.begin, mine.length);
}

bool UnitGradients::has_unsharded_grads() const {
  return std::any_of(has_unsharded_grad_.begin(), has_unsharded_grad_.end(), [](char waits) { return waits != 0; });
}

void UnitGradients::begin_collecting() {
  collecting_ = true;
  if (!options_.keeps_full) {
    rows_ = buffers_.allocate_shared(layout_.world() * row_length(), rows_options());
    ready_ = device::record(rows_.device());
  } else if (holds_any_sum()) {
    const device::StreamScope scope(kReduceStream, options_.stream);
    before_ = result_.clone();
    ready_ = device::record(rows_.device());
  }
}

/// Gradients of several backwards are summed first and then divided, as in a model with whole gradients, so that the
/// bits are equal.
void UnitGradients::take_run(const at::Tensor& target, const at::Tensor& source, size_t i, bool last) const {
  at::Tensor sum = target;
  const bool divides = divisor_before_ != 1;
  if (has_unsharded_grad_[i] && scaled_[i] && divides) {
    sum.add_(source.to(sum.scalar_type()).mul(scale_));
    return;
  }
  if (!has_unsharded_grad_[i] && last && divides && source.scalar_type() == sum.scalar_type()) {
    at::mul_out(sum, source, scale_);
    return;
  }
  has_unsharded_grad_[i] ? sum.add_(source) : sum.copy_(source);
  if (last && divides) sum.mul_(scale_);
}

void UnitGradients::take(size_t i, const at::Tensor& flat, bool last) {
  const hook::BelowAutograd guard;
  if (flight_) wait();
  if (!collecting_) begin_collecting();
  // Waits only for ready_, which all rows need: gradients of one parameter arrive in the order of their streams.
  if (options_.stream && collectors_.add(options_.value.device()))
    device::stream_wait(kReady, ready_, options_.value.device());
  for (const auto& at : runs_[i]) {
    take_run(run(rows_, at, at.length), flat.as_strided({at.length}, {1}, flat.storage_offset() + at.offset_in_param),
             i, last);
    if (!has_unsharded_grad_[i] && at.padded > at.length)
      set_zero(run(rows_, {at.row, at.offset_in_row + at.length, 0, 0, 0}, at.padded - at.length));
  }
  scaled_[i] = last || (has_unsharded_grad_[i] && scaled_[i]);
  has_unsharded_grad_[i] = true;
}

void UnitGradients::fill_gaps(bool freezing_change) {
  for (size_t i = 0; i < runs_.size(); ++i)
    for (const auto& at : runs_[i])
      if (!has_unsharded_grad_[i]) set_zero(run(rows_, at, at.padded));
      else if (!scaled_[i] && divisor_before_ != 1) run(rows_, at, at.length).mul_(scale_);
  for (const auto& gap : gaps_) set_zero(run(rows_, gap, gap.length));
  if (flags_are_apart()) {
    for (size_t i = 0; i < runs_.size(); ++i) sent_flags_[i] |= has_unsharded_grad_[i];
    sent_flags_.back() |= static_cast<char>(freezing_change);
    return;
  }
  auto flags = at::empty({static_cast<int64_t>(has_unsharded_grad_.size()) + 1}, at::TensorOptions().dtype(at::kFloat));
  *std::copy(has_unsharded_grad_.begin(), has_unsharded_grad_.end(), flags.mutable_data_ptr<float>()) = freezing_change;
  rows_.as_strided({layout_.world(), flags.numel()}, {row_length(), 1}, layout_.shard_numel()).copy_(flags);
}

void UnitGradients::receive_flags(const float* sums) {
  for (size_t i = 0; i < runs_.size(); ++i) has_sharded_grad_[i] |= static_cast<char>(sums[i] > 0);
  freezing_change_ = freezing_change_ || sums[runs_.size()] > 0;
  std::fill(sent_flags_.begin(), sent_flags_.end(), 0);
  reduced_ = false;
}

void UnitGradients::start_reduction(const comm::OperationLabel& label, bool freezing_change) {
  const hook::BelowAutograd guard;
  const device::StreamScope scope(kReduceStream, options_.stream);
  if (flight_) wait();
  if (!collecting_) begin_collecting();
  collectors_.wait(kCollected, options_.value.device());
  fill_gaps(freezing_change);
  Flight flight;
  const bool adds = !options_.keeps_full && holds_any_sum();
  flight.into_result = options_.reduce == result_.scalar_type() && !adds;
  flight.got = flight.into_result ? result_ : buffers_.allocate(row_length(), options_.value.dtype(options_.reduce));
  if (options_.keeps_full && options_.reduce != rows_.scalar_type()) {
    flight.sent = buffers_.allocate(rows_.numel(), options_.value.dtype(options_.reduce));
    flight.sent.copy_(rows_.view({-1}));
  } else {
    flight.rows = options_.keeps_full ? at::Tensor() : std::exchange(rows_, at::Tensor());
  }
  const at::Tensor given = flight.sent.defined() ? flight.sent : options_.keeps_full ? rows_ : flight.rows;
  std::fill(has_unsharded_grad_.begin(), has_unsharded_grad_.end(), 0);
  collecting_ = false;
  collectors_ = {};
  flight.label = &label;
  flight_ = std::move(flight);
  flight_->work = groups_.shards.with_label(label).start_reduce_scatter(flight_->got, given.view({-1}));
}

void UnitGradients::finish_scatter() {
  if (!flight_ || flight_->scattered) return;
  const device::StreamScope scope(kReduceStream, options_.stream);
  flight_->work.wait();
  flight_->scattered = true;
  buffers_.release_on_current(std::exchange(flight_->rows, at::Tensor()));
  buffers_.release_on_current(std::exchange(flight_->sent, at::Tensor()));
  flight_->work = comm::Work();
  if (groups_.replicas.size() == 1) return;
  auto label = *flight_->label;
  label.history_hash = 0;  // the ranks of one replica share a copy that other replicas do not have
  flight_->work = groups_.replicas.with_label(std::move(label)).start_all_reduce(flight_->got);
}

void UnitGradients::wait() {
  if (!flight_) return;
  const hook::BelowAutograd guard;
  const device::StreamScope scope(kReduceStream, options_.stream);
  finish_scatter();
  flight_->work.wait();
  const auto flight = *std::exchange(flight_, std::nullopt);
  add_sums(flight.got, flight.into_result, read_flags(flight.got));
  if (!flight.into_result) buffers_.release_on_current(flight.got);
  ready_ = device::record(options_.value.device());
}

/// Separate flags come later. Until then every parameter counts as having a gradient; if no rank has one, it is zeros.
std::vector<char> UnitGradients::read_flags(const at::Tensor& got) {
  if (flags_are_apart()) return std::vector<char>(has_unsharded_grad_.size(), 1);
  const auto flags = got.narrow(0, layout_.shard_numel(), got.numel() - layout_.shard_numel()).to(at::kCPU, at::kFloat);
  const auto* first = flags.const_data_ptr<float>();
  std::vector<char> used(has_unsharded_grad_.size());
  std::transform(first, first + used.size(), used.begin(), [](float sum) { return sum > 0; });
  freezing_change_ = freezing_change_ || first[used.size()] > 0;
  return used;
}

void UnitGradients::add_sums(const at::Tensor& got, bool into_result, const std::vector<char>& used) {
  const double after = divisor_before_ / divisor_;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i] && !holds_sum(i)) continue;
    auto sum = part_of(got, i);
    if (after != 1 && used[i]) {
      if (!into_result) sum = sum.to(result_.scalar_type());
      optim::scale_by(sum, after);
    }
    if (options_.keeps_full) add_kept_sum(i, sum, into_result, used[i]);
    else if (used[i] && !into_result) holds_sum(i) ? part(i).add_(sum) : part(i).copy_(sum);
    if (!flags_are_apart()) has_sharded_grad_[i] |= used[i];
  }
  reduced_ = flags_are_apart();
  before_.reset();
}

/// The memory of the shard was used to collect gradients, so the earlier sum is in before_.
void UnitGradients::add_kept_sum(size_t i, const at::Tensor& sum, bool into_result, bool used) {
  auto value = part(i);
  if (!used) value.copy_(part_of(before_, i));
  else if (!into_result) value.copy_(sum);
  if (used && holds_sum(i)) value.add_(part_of(before_, i));
}

void UnitGradients::cancel() noexcept {
  try {
    const hook::BelowAutograd guard;
    const device::StreamScope scope(kReduceStream, options_.stream);
    collectors_.wait(kCollected, options_.value.device());
    if (flight_) flight_->work.wait();
    if (options_.keeps_full && before_.defined()) result_.copy_(before_);
    ready_ = device::record(options_.value.device());
  } catch (const std::exception&) {
    // The group has failed; its next operation says so.
  }
  release_memory();
  before_.reset();
  collecting_ = reduced_ = false;
  std::fill(has_unsharded_grad_.begin(), has_unsharded_grad_.end(), 0);
  std::fill(sent_flags_.begin(), sent_flags_.end(), 0);
}

void UnitGradients::release_memory() {
  const device::StreamScope scope(kReduceStream, options_.stream);
  collectors_.wait(kCollected, options_.value.device());
  if (const auto flight = std::exchange(flight_, std::nullopt)) {
    buffers_.release_on_current(flight->rows);
    buffers_.release_on_current(flight->sent);
    if (!flight->into_result) buffers_.release_on_current(flight->got);
  }
  if (!options_.keeps_full) buffers_.release_on_current(std::exchange(rows_, at::Tensor()));
  collectors_ = {};
}

at::Tensor UnitGradients::unsharded(size_t i) {
  const hook::BelowAutograd guard;
  collectors_.wait(kCollected, options_.value.device());
  int64_t numel = 0;
  for (const auto& at : runs_[i]) numel += at.length;
  auto whole = at::empty({numel}, rows_.options());
  for (const auto& at : runs_[i]) whole.narrow(0, at.offset_in_param, at.length).copy_(run(rows_, at, at.length));
  return scaled_[i] ? whole.mul_(divisor_before_) : whole;
}

at::Tensor UnitGradients::sum(size_t i) const { return part_of(before_.defined() ? before_ : result_, i); }

void UnitGradients::load_sum(size_t i, const at::Tensor& values) {
  const hook::BelowAutograd guard;
  if (collecting_ && !has_unsharded_grads()) cancel();  // gradients were discarded, and a step reads the sum
  if (options_.keeps_full && collecting_ && !before_.defined()) before_ = result_.clone();
  const auto to = sum(i);
  set_zero(to);
  to.narrow(0, 0, values.numel()).copy_(values);
  has_sharded_grad_[i] = true;
}

void UnitGradients::zero(size_t i, bool set_to_none) {
  const hook::BelowAutograd guard;
  if (set_to_none) {
    has_unsharded_grad_[i] = has_sharded_grad_[i] = false;
    return;
  }
  if (has_unsharded_grad_[i])
    for (const auto& at : runs_[i]) set_zero(run(rows_, at, at.padded));
  set_zero(sum(i));
}

void UnitGradients::scale(size_t i, double factor) {
  const hook::BelowAutograd guard;
  if (has_unsharded_grad_[i])
    for (const auto& at : runs_[i]) optim::scale_by(run(rows_, at, at.length), factor);
  if (has_sharded_grad_[i]) optim::scale_by(sum(i), factor);
}

int64_t UnitGradients::pool_bytes() const {
  const auto width = static_cast<int64_t>(rows_options().dtype().itemsize());
  return options_.keeps_full ? 0 : layout_.world() * row_length() * width;
}

int64_t UnitGradients::held_bytes() const {
  return static_cast<int64_t>(options_.keeps_full ? rows_.nbytes() : result_.nbytes());
}

}  // namespace muster::parallel
