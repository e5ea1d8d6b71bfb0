#include "parallel/replicated/reducer.h"

#include <ATen/ops/mul.h>
#include <c10/util/ScopeExit.h>

#include "base/text.h"
#include "hook/below_autograd.h"
#include "muster/base/error.h"
#include "parallel/local.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kLocalFreed{"ddp: memory of local gradients is freed after they were read"};
constexpr device::SyncPoint kAccumulate{"ddp: a stream adds to gradients after the average that they hold"};

}  // namespace

void GradientStreams::order_local(at::Device device) const { local_.wait_for_current(kLocalFreed, device); }

void GradientStreams::note_averaged(at::Device device) {
  local_ = {};
  averaged_ = device::record(device);
  after_average_ = {};
  after_average_.add(device);
}

void GradientStreams::wait_for_average(at::Device device) {
  if (averaged_ && after_average_.add(device)) device::stream_wait(kAccumulate, averaged_, device);
}

Reducer::Reducer(std::string name, Replica& replica, FrozenParameters& frozen, const comm::Communicator& group,
                 const DdpOptions& options)
    : name_(std::move(name)), replica_(replica), frozen_(frozen), group_(group), options_(options),
      gradients_(replica.parameters().size()), static_graph_(options.static_graph),
      buckets_(name_, replica, group, chosen_comm_hook(options)), participants_(group.size()),
      watch_(*this, BackwardWatch::Threads::any, /*checks_bypass=*/true) {
  late_.label(name_);
  const auto& parameters = replica.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    watch({parameters[i].name, parameters[i].tensor}, static_cast<int64_t>(i));
}

void Reducer::enter_forward(const std::function<void()>& begin) {
  const base::Lock lock(watch_.mutex());
  if (watch_.forward_begins()) {
    begin();
    watch_.begin_forward();
    watch_unfrozen();
  }
  watch_.enter_forward();
}

void Reducer::leave_forward() noexcept {
  const base::Lock lock(watch_.mutex());
  watch_.leave_forward();
}

void Reducer::before_backward() {
  const base::Lock lock(watch_.mutex());
  watch_.announce();
}

void Reducer::after_backward() {
  const base::Lock lock(watch_.mutex());
  watch_.end_announced();
}

void Reducer::fail_backward() noexcept {
  const base::Lock lock(watch_.mutex());
  watch_.fail();
}

void Reducer::start() {
  const base::Lock lock(watch_.mutex());
  if (gradients_.empty()) return;
  cause_ = Cause::start;
  watch_.start_alone();
}

void Reducer::finish_started() {
  const base::Lock lock(watch_.mutex());
  watch_.end_alone();
}

void Reducer::follow(const JoinStep& step) {
  const base::Lock lock(watch_.mutex());
  const auto restore = c10::make_scope_exit([this] { participants_.include_all(); });
  participants_.set(step);
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

/// Waits, within the group's timeout, for what was started.
void Reducer::discard_backward() noexcept {
  if (!active_) return;
  buckets_.discard();
  late_.discard();
  active_ = false;
  recorder_.end();
}

void Reducer::gradient_arrived(size_t leaf, const at::Tensor& tensor) {
  if (sync_ && !active_) {
    cause_ = Cause::backward;
    prepare_reduction();
  }
  const auto index = index_of_leaf_[leaf];
  if (!sync_ || index < 0) {
    streams_.note_local(tensor.device());
    if (index >= 0) gradients_[static_cast<size_t>(index)].local = true;
    return;
  }
  const auto i = static_cast<size_t>(index);
  const auto& parameter = replica_.parameters()[i];
  auto& gradient = gradients_[i];
  if (gradient.fired) return add_late_gradient(i);
  static_graph_.got(i);
  if (buckets_.has_started(parameter.bucket)) return;
  gradient.fired = true;
  store(i);
  if (gradient.awaited && buckets_.arrived(parameter.bucket)) start_full_buckets();
}

/// The gradient so far is being sent, or is already scaled, so autograd must not add the next one to it.
void Reducer::before_gradient(size_t leaf) {
  streams_.wait_for_average(replica_.device());
  const auto index = index_of_leaf_[leaf];
  const auto i = static_cast<size_t>(index);
  if (!active_ || index < 0 || !gradients_[i].fired) return;
  watch_.forget_lost_calls();
  if (active_) replica_.parameters()[i].tensor.mutable_grad().reset();
}

void Reducer::prepare_reduction() {
  participants_.report();
  active_ = true;
  static_graph_.begin();
  buckets_.await_nothing();
  for (size_t i = 0; i < gradients_.size(); ++i) {
    auto& gradient = gradients_[i];
    const auto& parameter = replica_.parameters()[i];
    gradient.fired = false;
    replica_.release_kept_gradient(i);
    gradient.awaited = static_graph_.expects(i) && parameter.tensor.requires_grad();
    if (gradient.awaited) buckets_.await(parameter.bucket);
    else fill(i);
  }
}

/// Puts the parameter's gradient, times the scale, into its bucket, and makes grad() the view of the bucket.
void Reducer::store(size_t i) {
  const hook::BelowAutograd below;  // this runs inside backward, once per parameter
  const auto& parameter = replica_.parameters()[i];
  auto& gradient = parameter.tensor.mutable_grad();
  at::Tensor bucket_view = parameter.gradient;
  at::mul_out(bucket_view, gradient, participants_.scale());
  if (!gradient.is_same(bucket_view)) gradient = bucket_view;
  buckets_.note_writer(parameter.bucket);
}

/// In nested backwards, buckets that are already full may get further gradients. The flags in the last bucket report
/// that, so the last bucket starts only at the end.
void Reducer::start_full_buckets(bool ends) {
  const auto count = replica_.buckets().size();
  const auto startable = count - (watch_.nested() && !ends && count > 0 ? 1 : 0);
  while (buckets_.started() < startable && buckets_.next_is_full()) {
    if (buckets_.started() + 1 == count) write_flags();
    if (cause_ == Cause::backward) recorder_.begin();
    buckets_.start_next(labelled_step());
  }
}

void Reducer::register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) {
  recorder_.register_with(record, index);
  const auto model = "model " + std::to_string(index) + " (" + name_ + ")";
  buckets_.label(model);
  late_.label(model);
}

void Reducer::write_flags() {
  for (size_t i = 0; static_graph_.is_known() && cause_ == Cause::backward && i < gradients_.size(); ++i)
    static_graph_.compare(i, replica_.parameters()[i].tensor.requires_grad(), gradients_[i].fired);
  ReductionFlags::write(replica_, /*due=*/cause_ != Cause::join, static_graph_.broken(), !late_.empty(),
                        frozen_.any_unfrozen(), recorder_.send_bits());
}

void Reducer::finish(bool reports) {
  try {
    if (cause_ == Cause::backward)
      fill_the_rest();  // otherwise that is done, and buckets that are being sent must not change
    start_full_buckets(/*ends=*/true);
    buckets_.wait();
    if (at_end_) at_end_(participants_.root());
    active_ = false;
    recorder_.end();
    finalize_backward(reports);
    streams_.note_averaged(replica_.device());
  } catch (...) {
    active_ ? discard_backward() : streams_.note_averaged(replica_.device());
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
  buckets_.note_writer(parameter.bucket);
}

void Reducer::fill_the_rest() {
  for (size_t i = 0; i < gradients_.size(); ++i)
    if (!gradients_[i].fired && gradients_[i].awaited) fill(i);
  buckets_.await_nothing();
}

void Reducer::finalize_backward(bool reports) {
  auto flags = ReductionFlags::read(replica_);
  if (flags.unfrozen || (gradients_.empty() && frozen_.any_unfrozen())) {
    add_unfrozen();
    flags = ReductionFlags::read(replica_);
  }
  if (!gradients_.empty()) recorder_.receive_bits(flags.bits);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    auto& parameter = replica_.parameters()[i];
    gradients_[i].local = false;
    if (flags.used[i] > 0 && !parameter.tensor.unsafeGetTensorImpl()->grad().defined() &&
        parameter.tensor.requires_grad())
      parameter.tensor.mutable_grad() = parameter.gradient;
  }
  if (flags.late || !late_.empty()) late_.average(replica_, participants_.scale(), group_, labelled_step());
  if (cause_ != Cause::join) ++ended_;
  if (const auto names = flags.frozen_on_some(replica_); !names.empty())  // on all ranks, which have equal sums
    throw ConfigError("MU150", "ranks have frozen different parameters: only some of them have frozen " + names +
                                   "; call requires_grad_ alike on every rank, between the same steps");
  if (reports) report(flags);
  if (static_graph_.promised() && !static_graph_.is_known() && cause_ == Cause::backward) {
    std::vector<char> expected;
    for (size_t i = 0; i < gradients_.size(); ++i)
      expected.push_back(gradients_[i].fired || !replica_.parameters()[i].tensor.requires_grad());
    static_graph_.learn(std::move(expected));
  }
}

void Reducer::report(const ReductionFlags& flags) {
  watch_.check_for_bypass();
  if (!flags.any()) return;
  if (static_graph_.promised() && (flags.broken || static_graph_.broken()))
    throw UsageError("MU155",
                     "static_graph is on, but in this backward other parameters got gradients than in the first one: "
                     "turn it off, and find_unused_parameters on if parameters may be unused");
  if (options_.find_unused_parameters || static_graph_.promised()) return;
  auto text = flags.missing(replica_);
  if (text.empty()) return;
  if (recorder_.step() >= 0 && !participants_.in_session())
    text += " in gradient step " + std::to_string(recorder_.step());
  throw UsageError("MU152", text +
                                ": use these parameters in the loss, freeze them before prepare(), or set "
                                "find_unused_parameters. Where the layers are used, a parameter was likely assigned "
                                "over (layer->weight = ...), so that the "
                                "model computes with another tensor: write into it by copy_() instead");
}

/// Handles a further gradient of a parameter in this reduction.
void Reducer::add_late_gradient(size_t i) {
  const hook::BelowAutograd below;  // see store()
  const auto& parameter = replica_.parameters()[i];
  // before_gradient() has emptied grad(), so autograd has put a new tensor there.
  const at::Tensor more = std::exchange(parameter.tensor.mutable_grad(), parameter.gradient);
  if (buckets_.has_started(parameter.bucket)) return late_.add(i, more, replica_.device());
  buckets_.note_writer(parameter.bucket);
  at::Tensor(parameter.gradient).add_(at::mul(more, participants_.scale()));
}

/// Everything that this rank sends is zero, or was accumulated before and not communicated.
void Reducer::prepare_without_batch() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    auto& parameter = replica_.parameters()[i];
    gradients_[i].fired = false;
    auto& gradient = parameter.tensor.mutable_grad();
    // A gradient that was communicated before must not count again. After zero_grad(false) local ones are there, too.
    if (gradient.defined() && gradient.is_alias_of(parameter.gradient) && !gradients_[i].local) gradient.reset();
    fill(i);
  }
  buckets_.await_nothing();
  active_ = true;
  static_graph_.begin();
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
  const auto first = gradients_.size(), first_bucket = replica_.buckets().size();
  auto parameters = frozen_.take_unfrozen();
  const auto cap_bytes = options_.bucket_cap_mb * kMiB;
  replica_.append(parameters, cap_bytes, cap_bytes, ReductionFlags::count(first + parameters.size()));
  buckets_.extend();
  for (size_t i = first; i < replica_.parameters().size(); ++i) {
    auto* impl = replica_.parameters()[i].tensor.unsafeGetTensorImpl();
    index_of_leaf_[unfrozen_leaves_.extract(impl).mapped()] = static_cast<int64_t>(i);
    const bool fired = impl->grad().defined();
    gradients_.push_back({.fired = fired});
    static_graph_.add(/*expected=*/cause_ != Cause::backward || fired);
    fill(i);
  }
  const hook::BelowAutograd below;  // flat memory: nothing is recorded
  for (size_t b = first_bucket; b < replica_.buckets().size(); ++b) {
    if (b + 1 == replica_.buckets().size()) write_flags();
    buckets_.reduce(b, labelled_step());
  }
  if (!replica_.flags_are_apart() || replica_.buckets().size() == first_bucket) return;
  buckets_.reduce_flags(labelled_step());
}

}  // namespace muster::parallel
