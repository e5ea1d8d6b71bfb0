#include "parallel/replicated/reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
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
      scale_(optim::wrapped_number(1.0 / group.size())), bypass_({}), states_(replica.parameters().size()),
      label_(name_), comm_hook_(chosen_comm_hook(options)) {
  update_buckets();
  const auto& parameters = replica.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    attach({parameters[i].name, parameters[i].tensor}, static_cast<int64_t>(i));
}

Reducer::~Reducer() {
  for (const auto& [tensor, position] : early_hooks_) tensor.remove_hook(position);
}

void Reducer::divide_by(double ranks) { scale_ = optim::wrapped_number(1.0 / ranks); }

void Reducer::start() {
  const std::lock_guard lock(mutex_);
  if (states_.empty()) return;
  if (active_) discard();
  outside_backward_ = true;
  prepare_for_backward();
  fill_the_rest();
  start_full_buckets(/*ends=*/true);
}

void Reducer::finish_started() {
  const std::lock_guard lock(mutex_);
  const auto restore = c10::make_scope_exit([this] { outside_backward_ = false; });
  if (active_) finish(/*reports=*/true);
}

void Reducer::note_forward() noexcept {
  bypass_.forward_ended();
  if (hook::current_backward() < 0) inside_runtime_backward_ = false;  // one that threw did not call after_backward()
}

void Reducer::before_backward() {
  if (hook::current_backward() >= 0) return;  // within another one
  const std::lock_guard lock(mutex_);
  if (active_) discard();
  bypass_.backward_begins();
  inside_runtime_backward_ = true;
}

void Reducer::after_backward() {
  if (hook::current_backward() >= 0) return;
  const std::lock_guard lock(mutex_);
  inside_runtime_backward_ = false;
  if (active_) finish(/*reports=*/true);  // all gradients came from backwards within this one
  bypass_.check();
}

void Reducer::on_gradient(const VariableLocator& locator, const at::Tensor& leaf) {
  const std::lock_guard lock(mutex_);
  if (hook::backward_is_recorded())
    throw UsageError(
        "MU153", "backward with create_graph reached parameter '" + locator.name +
                     "' of a prepared model: its "
                     "gradient is averaged in place and cannot be differentiated again; compute the part that needs "
                     "it by autograd::grad with respect to activations");
  if (leaf.unsafeGetTensorImpl()->grad().layout() != at::kStrided)  // Tensor::grad() asks autograd about leaves
    throw UsageError("MU154", "parameter '" + locator.name +
                                  "' got a sparse gradient, which replicated training does not "
                                  "average: make it dense (EmbeddingOptions::sparse(false))");
  enter_backward();
  bypass_.gradient_arrived(locator.leaf);
  if (!sync_ || locator.index < 0) {
    local_uses_.add(leaf.device());
    return;
  }
  const auto i = static_cast<size_t>(locator.index);
  const auto& parameter = replica_.parameters()[i];
  auto& state = states_[i];
  if (state.fired) return add_late_gradient(i);
  if (!state.expected) broken_ = true;
  if (finishes_.size() > parameter.bucket) return;
  state.fired = true;
  store(i);
  if (state.awaited && --pending_[parameter.bucket] == 0) start_full_buckets();
}

/// An earlier gradient is being sent, or is scaled already, so autograd must not add the next one to it.
void Reducer::before_gradient(const VariableLocator& locator) {
  const auto i = static_cast<size_t>(locator.index);
  if (stream_) wait_for_average();
  if (!active_ || locator.index < 0 || !states_[i].fired) return;  // most gradients, which need no lock
  const std::lock_guard lock(mutex_);
  if (!inside_runtime_backward_ && backwards_alive_.expired()) discard();
  if (active_ && states_[i].fired) replica_.parameters()[i].tensor.mutable_grad().reset();
}

void Reducer::order_local_gradients() const { local_uses_.wait_for_current(kLocalFreed, replica_.device()); }

void Reducer::note_averaged() {
  local_uses_ = {};
  averaged_ = device::record(replica_.device());
  after_average_ = {};
  after_average_.add(replica_.device());
}

/// Autograd is about to add to what the last reduction has left, on the current stream.
void Reducer::wait_for_average() {
  const std::lock_guard lock(mutex_);
  if (averaged_ && after_average_.add(replica_.device()))
    device::stream_wait(kAccumulate, averaged_, replica_.device());
}

/// The first gradient of a backward, or the first after the end of one within it.
void Reducer::enter_backward() {
  const auto current = hook::current_backward();
  if (active_ && !inside_runtime_backward_ && backwards_alive_.expired()) discard();
  if (sync_ && !active_) prepare_for_backward();
  if (std::exchange(backward_, current) == current && !backwards_alive_.expired()) return;
  auto running = backwards_alive_.lock();
  if (!running) {
    backwards_.clear();
    backwards_alive_ = running = std::make_shared<char>();
  }
  if (std::find(backwards_.begin(), backwards_.end(), current) != backwards_.end()) return;
  nested_ = nested_ || !backwards_.empty();
  backwards_.push_back(current);
  hook::at_end_of_backward([this, current, running] { backward_ended(current); });
}

/// A reduction ends with the outermost backward. Where that one brought no gradient of its own, after_backward() ends
/// the reduction, and without it the inner one's end does, which does not know what is unused.
void Reducer::backward_ended(int64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase(backwards_, id);
  const bool inner = hook::backward_is_nested();
  if (inner) bypass_.nested_backward_ended();
  nested_ = nested_ || inner;
  if (!active_ || (inner && (inside_runtime_backward_ || !backwards_.empty()))) return;
  finish(/*reports=*/!inner);
}

void Reducer::prepare_for_backward() {
  if (session_) {
    const auto next = session_->report(JoinEvent::gradients, session_index_);
    divide_by(session_->divisor(next.active));
    root_ = next.root;
  }
  active_ = true;
  broken_ = nested_ = false;
  bypass_.backward_begins();
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

/// After a backward that threw: what was started is waited for, within the group's time-out, and forgotten.
void Reducer::discard() noexcept {
  const device::StreamScope scope(kBucketStream, stream_);
  for (auto& finish : std::exchange(finishes_, {})) try {
      if (finish) finish();
    } catch (...) {  // the group is unusable then, and its next operation says so
    }
  late_.clear();
  active_ = outside_backward_ = false;
  recorder_.end();
}

/// Puts the parameter's gradient, times the scale, into its bucket, and lets grad() be the bucket's view.
void Reducer::store(size_t i) {
  // Inside of backward, once per parameter: below autograd the product is dispatched once less, and nothing is
  // recorded.
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& parameter = replica_.parameters()[i];
  auto& gradient = parameter.tensor.mutable_grad();
  at::Tensor bucket_view = parameter.gradient;
  at::mul_out(bucket_view, gradient, scale_);
  if (!gradient.is_same(bucket_view)) gradient = bucket_view;
  if (stream_) bucket_uses_[parameter.bucket].add(replica_.device());
}

/// In nested backwards full buckets may get further gradients. The flags in the last bucket report that, so it starts
/// only at the end.
void Reducer::start_full_buckets(bool ends) {
  const auto& buckets = replica_.buckets();
  const auto startable = buckets.size() - (nested_ && !ends && !buckets.empty() ? 1 : 0);
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

/// Joined ranks are in steps of different numbers.
comm::Communicator Reducer::in_this_step(const comm::OperationLabel& label) const {
  auto now = label;
  now.gradient_step = session_ || shadow_ ? -1 : recorder_.step();
  return group_.with_label(std::move(now));
}

void Reducer::start_bucket(size_t bucket) {
  if (!shadow_ && !outside_backward_) recorder_.begin();
  const auto group = in_this_step(bucket_labels_[bucket]);
  const device::StreamScope scope(kBucketStream, stream_);
  bucket_uses_[bucket].wait(kBucketWritten, replica_.device());
  if (!comm_hook_) {
    finishes_.push_back(
        [work = group.start_all_reduce(replica_.buckets()[bucket], comm::ReduceOp::sum)]() mutable { work.wait(); });
  } else {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView below;  // a hook sees plain memory: nothing of it is recorded or counted
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
  const bool backward = !shadow_ && !outside_backward_;
  for (size_t i = 0; static_graph_known_ && backward && i < states_.size(); ++i)
    if (states_[i].fired != (states_[i].expected && replica_.parameters()[i].tensor.requires_grad())) broken_ = true;
  ReductionFlags::write(replica_, /*due=*/!shadow_, options_.static_graph && broken_, !late_.empty(),
                        frozen_.any_unfrozen(), recorder_.send_votes());
}

void Reducer::finish(bool reports) {
  try {
    if (!outside_backward_) fill_the_rest();  // start() has done so, and what is under way must stay
    start_full_buckets(/*ends=*/true);
    end_buckets();
    active_ = false;
    recorder_.end();
    finalize_backward(reports);
    note_averaged();
  } catch (...) {
    active_ ? discard() : note_averaged();
    throw;
  }
}

/// Without a gradient in this backward: what was accumulated before, or zeros.
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
    if (!shadow_ && !states_[i].fired && states_[i].awaited) fill(i);
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
  if (!shadow_) ++ended_;
  refuse_different_freezing(flags);
  if (reports) report(flags);
  if (options_.static_graph && !static_graph_known_ && !shadow_ && !outside_backward_) {
    for (size_t i = 0; i < states_.size(); ++i)
      states_[i].expected = states_[i].fired || !replica_.parameters()[i].tensor.requires_grad();
    static_graph_known_ = true;
  }
}

void Reducer::report(const ReductionFlags& flags) {
  bypass_.check();
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

}  // namespace muster::parallel
