#include "parallel/reduction_round.h"

#include "muster/base/error.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <utility>

namespace muster::parallel {
namespace {

std::vector<at::Tensor> leaves_of(const Replica& replica) {
  std::vector<at::Tensor> leaves;
  for (const auto& parameter : replica.parameters()) leaves.push_back(parameter.tensor);
  return leaves;
}

/// A number that does not take part in type promotion, as a Python number would be.
at::Tensor number(double value) {
  auto scalar = at::scalar_tensor(value, at::kDouble);
  scalar.unsafeGetTensorImpl()->set_wrapped_number(true);
  return scalar;
}

std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", '" : "'") + names[i] + "'";
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

}  // namespace

ReductionRound::ReductionRound(Replica& replica, const dist::Communicator& group, const DdpOptions& options)
    : replica_(replica),
      group_(group),
      options_(options),
      scale_(number(1.0 / group.size())),
      graphs_(leaves_of(replica)),
      states_(replica.parameters().size()),
      pending_(replica.buckets().size()),
      comm_hook_(chosen_comm_hook(options)) {
  if (comm_hook_) lay_hook_buckets();
  const auto& parameters = replica.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    hooks_.emplace_back(parameters[i].tensor, [this, i](const at::Tensor&) { on_gradient(i); });
    captures_.emplace_back(parameters[i].tensor, [&parameters, i] {
      throw UsageError("MU153", "autograd::grad with respect to parameter '" + parameters[i].name + "' of a prepared model "
                                "would give this rank's gradient only, unaveraged: take it from a module that is not "
                                "prepared, or call backward and read the parameter's grad()");
    });
  }
}

void ReductionRound::set_session(JoinSession* session, int64_t model) noexcept {
  session_ = session;
  number_ = model;
  if (session) return;
  divide_by(group_.size());
  root_ = 0;
}

void ReductionRound::divide_by(double ranks) { scale_ = number(1.0 / ranks); }

void ReductionRound::shadow(int root, double divisor) {
  const std::lock_guard lock(mutex_);
  if (active_) drain();
  divide_by(divisor);
  root_ = root;
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& parameter = replica_.parameters()[i];
    states_[i].fired = false;
    auto& gradient = parameter.tensor.mutable_grad();
    // What was communicated before must not count again.
    if (gradient.defined() && gradient.is_alias_of(parameter.gradient)) gradient.reset();
    fill(i);
  }
  active_ = shadow_ = true;
  broken_ = seen_gradient_ = seen_scoped_ = false;
  try {
    std::fill(pending_.begin(), pending_.end(), 0);
    start_full_buckets();
    end_buckets();
    active_ = false;
    conclude();
  } catch (...) {
    if (active_) drain();
    shadow_ = false;
    throw;
  }
  shadow_ = false;
  divide_by(group_.size());
}

void ReductionRound::before_backward() {
  const std::lock_guard lock(mutex_);
  if (active_) drain();
  seen_gradient_ = seen_scoped_ = false;
}

void ReductionRound::after_backward() {
  const std::lock_guard lock(mutex_);
  if (seen_gradient_ && !seen_scoped_) refuse_bypass();
}

void ReductionRound::refuse_bypass() {
  seen_gradient_ = false;
  throw UsageError("MU151", "backward reached parameters of a prepared model whose forward ran outside of the handle that "
                            "prepare() returned, without autocast and synchronisation: call model(x), or "
                            "model.run(&Net::other, x) for another entry");
}

void ReductionRound::on_gradient(size_t i) {
  const std::lock_guard lock(mutex_);
  const auto& parameter = replica_.parameters()[i];
  if (hook::backward_is_recorded())
    throw UsageError("MU153", "backward with create_graph reached parameter '" + parameter.name + "' of a prepared model: its "
                              "gradient is averaged in place and cannot be differentiated again; compute the part that needs "
                              "it by autograd::grad with respect to activations");
  if (parameter.tensor.unsafeGetTensorImpl()->grad().layout() != at::kStrided)
    throw UsageError("MU154", "parameter '" + parameter.name + "' got a sparse gradient, which replicated training does not "
                              "average: make it dense (EmbeddingOptions::sparse(false))");
  if (sync_ && (!active_ || backward_ != hook::current_backward())) begin();
  seen_gradient_ = true;
  seen_scoped_ = seen_scoped_ || graphs_.noted(i);
  if (!sync_) return;
  auto& state = states_[i];
  const bool started = finishes_.size() > parameter.bucket;
  if (state.fired || !state.expected || started) broken_ = true;
  if (state.fired || started) return;
  state.fired = true;
  store(i);
  if (state.expected && --pending_[parameter.bucket] == 0) start_full_buckets();
}

void ReductionRound::begin() {
  if (active_) drain();
  if (session_) {
    const auto next = session_->tell(JoinEvent::gradients, number_);
    divide_by(session_->divisor(next.active));
    root_ = next.root;
  }
  active_ = true;
  broken_ = seen_gradient_ = seen_scoped_ = false;
  backward_ = hook::current_backward();
  std::fill(pending_.begin(), pending_.end(), 0);
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].fired = false;
    if (states_[i].expected)
      ++pending_[replica_.parameters()[i].bucket];
    else
      fill(i);   // its bucket will not wait for it
  }
  hook::at_end_of_backward([this] { finish(); });
}

/// After a backward that threw: what was started is waited for, within the group's time-out, and forgotten.
void ReductionRound::drain() noexcept {
  for (auto& finish : std::exchange(finishes_, {})) try {
      if (finish) finish();
    } catch (...) {   // the group is unusable then, and its next operation says so
    }
  active_ = false;
}

/// Puts the parameter's gradient, times the scale, into its bucket, and lets grad() be that place.
void ReductionRound::store(size_t i) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& parameter = replica_.parameters()[i];
  auto& gradient = parameter.tensor.mutable_grad();
  at::Tensor place = parameter.gradient;
  at::mul_out(place, gradient, scale_);
  if (!gradient.is_same(place)) gradient = place;
}

void ReductionRound::start_full_buckets() {
  const auto& buckets = replica_.buckets();
  while (finishes_.size() < buckets.size() && pending_[finishes_.size()] == 0) {
    if (finishes_.size() + 1 == buckets.size()) write_flags();
    start_bucket(finishes_.size());
  }
}

void ReductionRound::start_bucket(size_t bucket) {
  if (!comm_hook_) {
    finishes_.push_back([work = group_.start_all_reduce(replica_.buckets()[bucket], dist::ReduceOp::sum)]() mutable { work.wait(); });
    return;
  }
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  finishes_.push_back(comm_hook_->start(hook_buckets_[bucket], group_));
  if (hook_buckets_[bucket].last) flag_work_ = group_.start_all_reduce(replica_.flags(), dist::ReduceOp::sum);
}

/// Gradients as they lie in the buckets: one that has two dimensions or more as a matrix whose rows go along the dimension that
/// is outermost in memory.
void ReductionRound::lay_hook_buckets() {
  const auto& layout = replica_.layout();
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const auto& span = layout.buckets[b];
    GradientBucket bucket{b, b + 1 == layout.buckets.size(), replica_.buckets()[b].narrow(0, 0, span.length), {}, {}};
    for (const auto i : span.items) {
      const auto& gradient = replica_.parameters()[i].gradient;
      const auto place = bucket.flat.narrow(0, layout.offsets[i] - span.begin, gradient.numel());
      if (gradient.dim() < 2 || gradient.numel() == 0) {
        bucket.rest.push_back(place);
      } else {
        const auto outer = std::max_element(gradient.strides().begin(), gradient.strides().end()) - gradient.strides().begin();
        bucket.matrices.push_back(place.view({gradient.size(outer), -1}));
      }
    }
    hook_buckets_.push_back(std::move(bucket));
  }
}

void ReductionRound::end_buckets() {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto& finish : finishes_) std::exchange(finish, nullptr)();
  flag_work_.wait();
  finishes_.clear();
  if (at_end_) at_end_(root_);
}

/// Per parameter: 1 where this rank has a gradient; then: 1 where it should have one and has none; then: something else
/// than expected has happened. Sums of ones compare well with 0 in every dtype, so both sides of the question are asked.
void ReductionRound::write_flags() {
  const auto count = static_cast<int64_t>(states_.size());
  const auto own = at::empty({flag_count(states_.size())}, at::kDouble);
  auto* flags = own.mutable_data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) {
    const auto& parameter = replica_.parameters()[static_cast<size_t>(i)];
    const bool used = parameter.tensor.unsafeGetTensorImpl()->grad().defined();
    flags[i] = used;
    flags[count + i] = !used && !shadow_ && parameter.tensor.requires_grad();
    if (learned_ && !shadow_ && states_[static_cast<size_t>(i)].fired != states_[static_cast<size_t>(i)].expected) broken_ = true;
  }
  flags[2 * count] = options_.static_graph && broken_;
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  replica_.flags().copy_(own);
}

void ReductionRound::finish() {
  const std::lock_guard lock(mutex_);
  if (!active_) return;
  try {
    fill_the_rest();
    start_full_buckets();
    end_buckets();
  } catch (...) {
    drain();
    throw;
  }
  active_ = false;
  conclude();
}

/// Without a gradient in this backward: what was accumulated before, or zeros.
void ReductionRound::fill(size_t i) {
  const auto& parameter = replica_.parameters()[i];
  if (parameter.tensor.unsafeGetTensorImpl()->grad().defined()) return store(i);
  at::NoGradGuard no_grad;
  parameter.piece.gradient.zero_();
}

void ReductionRound::fill_the_rest() {
  for (size_t i = 0; i < states_.size(); ++i)
    if (!states_[i].fired && states_[i].expected) fill(i);
  std::fill(pending_.begin(), pending_.end(), 0);
}

void ReductionRound::conclude() {
  const auto count = states_.size();
  const auto flags = replica_.flags().to(at::kCPU, at::kDouble);
  const auto* values = flags.const_data_ptr<double>();
  const std::vector<double> used(values, values + count), unused(values + count, values + 2 * count);
  for (size_t i = 0; i < count; ++i) {
    auto& parameter = replica_.parameters()[i];
    if (used[i] > 0 && !parameter.tensor.unsafeGetTensorImpl()->grad().defined() && parameter.tensor.requires_grad())
      parameter.tensor.mutable_grad() = parameter.gradient;
  }
  report(used, unused, values[2 * count]);
  if (options_.static_graph && !learned_ && !shadow_) {
    for (auto& state : states_) state.expected = state.fired;
    learned_ = true;
  }
}

void ReductionRound::report(const std::vector<double>& used, const std::vector<double>& unused, double broken) {
  if (seen_gradient_ && !seen_scoped_) refuse_bypass();
  if (options_.static_graph && (broken > 0 || broken_))
    throw UsageError("MU155", "static_graph is on, but in this backward other parameters got gradients than in the first one: "
                              "turn it off, and find_unused_parameters on if parameters may be unused");
  if (options_.find_unused_parameters || options_.static_graph) return;
  std::vector<std::string> nowhere, somewhere;
  for (size_t i = 0; i < unused.size(); ++i)
    if (unused[i] > 0) (used[i] > 0 ? somewhere : nowhere).push_back(replica_.parameters()[i].name);
  if (nowhere.empty() && somewhere.empty()) return;
  std::string text;
  if (!nowhere.empty()) text += "no rank has a gradient for " + list_names(nowhere);
  if (!somewhere.empty()) text += (text.empty() ? "" : "; ") + ("only some ranks have a gradient for " + list_names(somewhere));
  throw UsageError("MU152", text + ": use these parameters in the loss, freeze them before prepare(), or set "
                                   "find_unused_parameters");
}

}  // namespace muster::parallel
