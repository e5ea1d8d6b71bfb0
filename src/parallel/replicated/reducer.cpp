#include "parallel/replicated/reducer.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include "muster/base/error.h"
#include "muster/optim/detail/norm.h"
#include "parallel/local.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kBucketStream{"ddp: buckets are communicated on a stream of their own"};
constexpr device::SyncPoint kBucketWritten{"ddp: a bucket is communicated after all streams that have written it"};
constexpr device::SyncPoint kLocalFreed{"ddp: memory of local gradients is freed after they were read"};
constexpr device::SyncPoint kAverage{"ddp: what follows the backward reads averaged gradients"};
constexpr device::SyncPoint kAccumulate{"ddp: a stream adds to gradients after the average that they hold"};

}  // namespace

Reducer::Reducer(std::string name, Replica& replica, FrozenParameters& frozen, const comm::Communicator& group,
                 const DdpOptions& options)
    : name_(std::move(name)), replica_(replica), frozen_(frozen), group_(group), options_(options),
      scale_(optim::wrapped_number(1.0 / group.size())), states_(replica.parameters().size()), label_(name_),
      comm_hook_(chosen_comm_hook(options)),
      watch_(mutex_, *this, BackwardWatch::Threads::any, /*checks_bypass=*/true) {
  update_buckets();
  const auto& parameters = replica.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    watch({parameters[i].name, parameters[i].tensor}, static_cast<int64_t>(i));
}

void Reducer::divide_by(double ranks) { scale_ = optim::wrapped_number(1.0 / ranks); }

void Reducer::enter_forward(const std::function<void()>& begin) {
  const std::lock_guard lock(mutex_);
  if (watch_.forward_begins()) {
    begin();
    watch_.begin_forward();
    watch_unfrozen();
  }
  watch_.enter_forward();
}

void Reducer::leave_forward() noexcept {
  const std::lock_guard lock(mutex_);
  watch_.leave_forward();
}

void Reducer::before_backward() {
  const std::lock_guard lock(mutex_);
  watch_.announce();
}

void Reducer::after_backward() {
  const std::lock_guard lock(mutex_);
  watch_.end_announced();
}

void Reducer::fail_backward() noexcept {
  const std::lock_guard lock(mutex_);
  watch_.fail();
}

void Reducer::start() {
  const std::lock_guard lock(mutex_);
  if (states_.empty()) return;
  cause_ = Cause::start;
  watch_.start_alone();
}

void Reducer::finish_started() {
  const std::lock_guard lock(mutex_);
  watch_.end_alone();
}

void Reducer::shadow(int root, double divisor) {
  const std::lock_guard lock(mutex_);
  const auto restore = c10::make_scope_exit([this] {
    root_ = 0;
    divide_by(group_.size());
  });
  divide_by(divisor);
  root_ = root;
  cause_ = Cause::join;
  watch_.start_alone();
  watch_.end_alone();
}

/// The first gradient of a backward begins its reduction, since a model is told of backwards that do not reach it.
void Reducer::begin_backward(BackwardState what) {
  if (what != BackwardState::alone) return;
  if (cause_ == Cause::join) return prepare_without_batch();
  prepare_reduction();
  fill_the_rest();
  start_full_buckets(/*ends=*/true);
}

void Reducer::end_backward(BackwardState, bool complete) {
  if (active_) finish(/*reports=*/complete);
}

void Reducer::discard_backward() noexcept {
  if (active_) discard_reduction();
}

void Reducer::gradient_arrived(size_t leaf, const at::Tensor& tensor) {
  if (sync_ && !active_) {
    cause_ = Cause::backward;
    prepare_reduction();
  }
  const auto index = index_of_leaf_[leaf];
  if (!sync_ || index < 0) {
    local_uses_.add(tensor.device());
    return;
  }
  const auto i = static_cast<size_t>(index);
  const auto& parameter = replica_.parameters()[i];
  auto& state = states_[i];
  if (state.fired) return add_late_gradient(i);
  if (!state.expected) broken_ = true;
  if (finishes_.size() > parameter.bucket) return;
  state.fired = true;
  store(i);
  if (state.awaited && --pending_[parameter.bucket] == 0) start_full_buckets();
}

/// The gradient so far is being sent, or is already scaled, so autograd must not add the next one to it.
void Reducer::before_gradient(size_t leaf) {
  if (stream_) wait_for_average();
  const auto index = index_of_leaf_[leaf];
  const auto i = static_cast<size_t>(index);
  if (!active_ || index < 0 || !states_[i].fired) return;
  watch_.forget_lost_calls();
  if (active_ && states_[i].fired) replica_.parameters()[i].tensor.mutable_grad().reset();
}

void Reducer::order_local_gradients() const { local_uses_.wait_for_current(kLocalFreed, replica_.device()); }

void Reducer::note_averaged() {
  local_uses_ = {};
  averaged_ = device::record(replica_.device());
  after_average_ = {};
  after_average_.add(replica_.device());
}

/// Called when autograd is about to add to what the last reduction has left, on the current stream.
void Reducer::wait_for_average() {
  if (averaged_ && after_average_.add(replica_.device()))
    device::stream_wait(kAccumulate, averaged_, replica_.device());
}

void Reducer::prepare_reduction() {
  if (session_) {
    const auto next = session_->report(JoinEvent::gradients, session_index_);
    divide_by(session_->divisor(next.active));
    root_ = next.root;
  }
  active_ = true;
  broken_ = false;
  std::fill(pending_.begin(), pending_.end(), 0);
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = states_[i];
    const auto& parameter = replica_.parameters()[i];
    state.fired = false;
    replica_.release_kept_gradient(i);
    state.awaited = state.expected && parameter.tensor.requires_grad();
    if (state.awaited) ++pending_[parameter.bucket];
    else fill(i);
  }
}

/// Cleans up after a backward that threw: waits, within the group's timeout, for what was started, and discards it.
void Reducer::discard_reduction() noexcept {
  const device::StreamScope scope(kBucketStream, stream_);
  for (auto& finish : std::exchange(finishes_, {})) try {
      if (finish) finish();
    } catch (...) {  // the group is unusable then, and its next operation says so
    }
  late_.clear();
  active_ = false;
  recorder_.end();
}

/// Puts the parameter's gradient, times the scale, into its bucket, and makes grad() the view of the bucket.
void Reducer::store(size_t i) {
  // This runs inside backward, once per parameter. Below autograd the product is dispatched one time less, and nothing
  // is recorded.
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& parameter = replica_.parameters()[i];
  auto& gradient = parameter.tensor.mutable_grad();
  at::Tensor bucket_view = parameter.gradient;
  at::mul_out(bucket_view, gradient, scale_);
  if (!gradient.is_same(bucket_view)) gradient = bucket_view;
  if (stream_) bucket_uses_[parameter.bucket].add(replica_.device());
}

/// In nested backwards, buckets that are already full may get further gradients. The flags in the last bucket report
/// that, so the last bucket starts only at the end.
void Reducer::start_full_buckets(bool ends) {
  const auto& buckets = replica_.buckets();
  const auto startable = buckets.size() - (watch_.nested() && !ends && !buckets.empty() ? 1 : 0);
  while (finishes_.size() < startable && pending_[finishes_.size()] == 0) {
    if (finishes_.size() + 1 == buckets.size()) write_flags();
    start_bucket(finishes_.size());
  }
}

void Reducer::name_operations(const std::string& model) {
  label_ = model;
  const auto label = [&](const std::string& what) {
    return comm::OperationLabel{.text = comm::kGradientsLabel + model + ", " + what, .source = comm::Source::library};
  };
  flag_label_ = label("flags");
  late_label_ = label("late gradients");
  for (size_t b = 0; b < bucket_labels_.size(); ++b) bucket_labels_[b] = label("bucket " + std::to_string(b));
}

void Reducer::register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) {
  recorder_.register_with(record, index);
  name_operations("model " + std::to_string(index) + " (" + name_ + ")");
}

/// Ranks in a join_uneven_inputs() loop are in different steps, so their labels have no step.
comm::Communicator Reducer::in_this_step(const comm::OperationLabel& label) const {
  auto now = label;
  now.gradient_step = session_ || cause_ == Cause::join ? -1 : recorder_.step();
  return group_.with_label(std::move(now));
}

void Reducer::start_bucket(size_t bucket) {
  if (cause_ == Cause::backward) recorder_.begin();
  const auto group = in_this_step(bucket_labels_[bucket]);
  const device::StreamScope scope(kBucketStream, stream_);
  bucket_uses_[bucket].wait(kBucketWritten, replica_.device());
  if (!comm_hook_) {
    finishes_.push_back(
        [work = group.start_all_reduce(replica_.buckets()[bucket], comm::ReduceOp::sum)]() mutable { work.wait(); });
  } else {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView below;  // hooks see plain memory: no graph, no versions
    finishes_.push_back(comm_hook_->start(hook_buckets_[bucket], hook_groups_[bucket] = group));
  }
  if (bucket + 1 == replica_.buckets().size() && (comm_hook_ || replica_.flags_are_apart())) start_flags();
}

void Reducer::start_flags() {
  flag_work_ = in_this_step(flag_label_).start_all_reduce(replica_.flags(), comm::ReduceOp::sum);
}

void Reducer::run_finishes() {
  const device::StreamScope scope(kBucketStream, stream_);
  for (auto& finish : finishes_) std::exchange(finish, nullptr)();
}

void Reducer::end_buckets() {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;  // as in start_bucket()
  run_finishes();
  device::wait_stream(kAverage, device::current_stream(replica_.device()), stream_);
  flag_work_.wait();
  finishes_.clear();
  if (at_end_) at_end_(root_);
}

void Reducer::write_flags() {
  for (size_t i = 0; static_graph_known_ && cause_ == Cause::backward && i < states_.size(); ++i)
    if (states_[i].fired != (states_[i].expected && replica_.parameters()[i].tensor.requires_grad())) broken_ = true;
  ReductionFlags::write(replica_, /*due=*/cause_ != Cause::join, options_.static_graph && broken_, !late_.empty(),
                        frozen_.any_unfrozen(), recorder_.send_votes());
}

void Reducer::finish(bool reports) {
  try {
    if (cause_ == Cause::backward)
      fill_the_rest();  // otherwise that is done, and buckets that are being sent must not change
    start_full_buckets(/*ends=*/true);
    end_buckets();
    active_ = false;
    recorder_.end();
    finalize_backward(reports);
    note_averaged();
  } catch (...) {
    active_ ? discard_reduction() : note_averaged();
    throw;
  }
}

/// Fills in for a gradient that this backward did not produce: with what was accumulated before, or zeros.
void Reducer::fill(size_t i) {
  const auto& parameter = replica_.parameters()[i];
  if (const at::Tensor kept = parameter.tensor.unsafeGetTensorImpl()->grad(); kept.defined()) {
    store(i);
    return order_local_gradients();
  }
  at::NoGradGuard no_grad;
  parameter.local.gradient.zero_();
  if (stream_) bucket_uses_[parameter.bucket].add(replica_.device());
}

void Reducer::fill_the_rest() {
  for (size_t i = 0; i < states_.size(); ++i)
    if (!states_[i].fired && states_[i].awaited) fill(i);
  std::fill(pending_.begin(), pending_.end(), 0);
}

void Reducer::finalize_backward(bool reports) {
  auto flags = ReductionFlags::read(replica_);
  if (flags.unfrozen || (states_.empty() && frozen_.any_unfrozen())) {
    add_unfrozen();
    flags = ReductionFlags::read(replica_);
  }
  if (!states_.empty()) recorder_.receive_votes(flags.votes);
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& parameter = replica_.parameters()[i];
    if (flags.used[i] > 0 && !parameter.tensor.unsafeGetTensorImpl()->grad().defined() &&
        parameter.tensor.requires_grad())
      parameter.tensor.mutable_grad() = parameter.gradient;
  }
  if (flags.late || !late_.empty()) average_late();
  if (cause_ != Cause::join) ++ended_;
  refuse_different_freezing(flags);
  if (reports) report(flags);
  if (options_.static_graph && !static_graph_known_ && cause_ == Cause::backward) {
    for (size_t i = 0; i < states_.size(); ++i)
      states_[i].expected = states_[i].fired || !replica_.parameters()[i].tensor.requires_grad();
    static_graph_known_ = true;
  }
}

void Reducer::report(const ReductionFlags& flags) {
  watch_.check_for_bypass();
  if (!flags.any()) return;
  if (options_.static_graph && (flags.broken || broken_))
    throw UsageError("MU155",
                     "static_graph is on, but in this backward other parameters got gradients than in the first one: "
                     "turn it off, and find_unused_parameters on if parameters may be unused");
  if (options_.find_unused_parameters || options_.static_graph) return;
  auto text = flags.missing(replica_);
  if (text.empty()) return;
  if (recorder_.step() >= 0 && !session_) text += " in gradient step " + std::to_string(recorder_.step());
  throw UsageError("MU152", text +
                                ": use these parameters in the loss, freeze them before prepare(), or set "
                                "find_unused_parameters. Where the layers are used, a parameter was likely assigned "
                                "over (layer->weight = ...), so that the "
                                "model computes with another tensor: write into it by copy_() instead");
}

namespace {

constexpr device::SyncPoint kLateFreed{"ddp: memory of late gradients is freed after they were read"};

}  // namespace

/// Handles a further gradient of a parameter in this reduction.
void Reducer::add_late_gradient(size_t i) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;  // see store()
  const auto& parameter = replica_.parameters()[i];
  // before_gradient() has emptied grad(), so autograd has put a new tensor there.
  const at::Tensor more = std::exchange(parameter.tensor.mutable_grad(), parameter.gradient);
  auto& uses = finishes_.size() <= parameter.bucket ? bucket_uses_[parameter.bucket] : late_uses_;
  uses.add(replica_.device());
  if (finishes_.size() <= parameter.bucket) {
    at::Tensor(parameter.gradient).add_(at::mul(more, scale_));
  } else if (auto& late = late_[i]; late.defined()) {
    late.add_(more);
  } else {
    late = more;
  }
}

void Reducer::average_late() {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;  // see store()
  const auto late = std::exchange(late_, {});
  const auto& layout = replica_.layout();
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const auto& span = layout.buckets[b];
    const auto sum = at::zeros({span.length}, replica_.buckets()[b].options());
    for (const auto i : span.items) {
      const auto found = late.find(i);
      if (found == late.end()) continue;
      const auto& like = replica_.parameters()[i].gradient;
      sum.as_strided(like.sizes(), like.strides(), layout.offsets[i] - span.begin)
          .copy_(at::mul(found->second, scale_));
    }
    in_this_step(late_label_).all_reduce(sum, comm::ReduceOp::sum);
    replica_.buckets()[b].narrow(0, 0, span.length).add_(sum);
  }
  std::exchange(late_uses_, {}).wait_for_current(kLateFreed, replica_.device());
}

void Reducer::set_session(JoinSession* session, int64_t model) noexcept {
  session_ = session;
  session_index_ = model;
  if (session) return;
  divide_by(group_.size());
  root_ = 0;
}

/// Everything that this rank sends is zero, or was accumulated before and not communicated.
void Reducer::prepare_without_batch() {
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& parameter = replica_.parameters()[i];
    states_[i].fired = false;
    auto& gradient = parameter.tensor.mutable_grad();
    // A gradient that was communicated before must not count again.
    if (gradient.defined() && gradient.is_alias_of(parameter.gradient)) gradient.reset();
    fill(i);
  }
  std::fill(pending_.begin(), pending_.end(), 0);
  active_ = true;
  broken_ = false;
}

void Reducer::watch(const NamedTensor& parameter, int64_t index) {
  index_of_leaf_.push_back(index);
  const auto leaf = watch_.watch(parameter);
  if (index < 0) unfrozen_leaves_[parameter.tensor.unsafeGetTensorImpl()] = leaf;
}

void Reducer::watch_unfrozen() {
  for (const auto& named : frozen_.all())
    if (named.tensor.requires_grad() && !watch_.watches(named.tensor)) watch(named, /*index=*/-1);
}

/// Adds parameters that were unfrozen. Autograd has accumulated their gradients of this reduction in separate tensors.
/// All ranks get here, because each has read the flags.
void Reducer::add_unfrozen() {
  at::NoGradGuard no_grad;
  frozen_.require_agreement(group_);
  watch_unfrozen();
  const auto first = states_.size(), first_bucket = replica_.buckets().size();
  auto parameters = frozen_.take_unfrozen();
  replica_.append(parameters, options_.bucket_cap_mb * kMiB, ReductionFlags::count(first + parameters.size()));
  update_buckets();
  for (size_t i = first; i < replica_.parameters().size(); ++i) {
    auto* impl = replica_.parameters()[i].tensor.unsafeGetTensorImpl();
    index_of_leaf_[unfrozen_leaves_.extract(impl).mapped()] = static_cast<int64_t>(i);
    auto& state = states_.emplace_back();
    state.fired = impl->grad().defined();
    state.expected = !static_graph_known_ || cause_ != Cause::backward || state.fired;
    fill(i);
  }
  at::AutoDispatchBelowADInplaceOrView below;  // flat memory: nothing is recorded
  for (size_t b = first_bucket; b < replica_.buckets().size(); ++b) {
    if (b + 1 == replica_.buckets().size()) write_flags();
    in_this_step(bucket_labels_[b]).all_reduce(replica_.buckets()[b], comm::ReduceOp::sum);
  }
  if (!replica_.flags_are_apart() || replica_.buckets().size() == first_bucket) return;
  start_flags();
  flag_work_.wait();
}

/// Every rank has equal sums, so all ranks throw.
void Reducer::refuse_different_freezing(const ReductionFlags& flags) const {
  if (const auto names = flags.frozen_on_some(replica_); !names.empty())
    throw ConfigError("MU150", "ranks have frozen different parameters: only some of them have frozen " + names +
                                   "; call requires_grad_ alike on every rank, between the same steps");
}

void Reducer::update_buckets() {
  const auto count = replica_.buckets().size();
  pending_.resize(count);
  bucket_labels_.resize(count);
  bucket_uses_.resize(count);
  if (!stream_ && !replica_.device().is_cpu()) stream_ = device::stream_from_pool(replica_.device());
  name_operations(label_);
  if (!comm_hook_) return;
  hook_buckets_ = replica_.hook_buckets();
  hook_groups_.resize(count);
}

}  // namespace muster::parallel
