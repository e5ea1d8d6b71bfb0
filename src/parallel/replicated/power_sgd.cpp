#include "parallel/replicated/power_sgd.h"

#include <algorithm>
#include <map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "base/log.h"
#include "device/order.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/parallel/comm_hook.h"

namespace muster::parallel {

at::Tensor orthonormalize(const at::Tensor& matrix) {
  const double noise = matrix.scalar_type() == at::kDouble ? 1e-12 : 1e-5;  // relative norm without a direction
  const auto before = matrix.norm(2, 0);
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    const auto column = matrix.select(1, i);
    const auto norm = column.norm();
    const auto keep = (norm > before[i] * noise).to(matrix.scalar_type());
    column.mul_(keep / norm.clamp_min(1e-30));
    if (i + 1 == matrix.size(1)) break;
    const auto others = matrix.narrow(1, i + 1, matrix.size(1) - i - 1);
    others.sub_(at::outer(column, others.t().matmul(column)));
  }
  return matrix.abs().sum(0) == 0;
}

at::Tensor first_factor(int64_t rows, int64_t columns, uint64_t seed, const at::TensorOptions& options) {
  auto random = at::detail::createCPUGenerator(seed);
  return at::randn({rows, columns}, random, at::TensorOptions().dtype(at::kDouble)).to(options);
}

namespace {

constexpr device::SyncPoint kFactor{"powersgd: a first factor is copied to the device"};

/// The dtype and device of factors. Half precision is factorized in float32.
at::TensorOptions factor_options(const at::Tensor& flat) {
  return at::TensorOptions().dtype(flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).device(flat.device());
}

class PowerSgdHook final : public CommHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {}
  Finish start(const GradientBucket& bucket, const comm::Communicator& group) override;
  std::string_view name() const override { return "powersgd"; }
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  struct Pair {
    at::Tensor matrix, p, q;  // p and q are views of flat_p and flat_q
    at::Tensor spare = {};    // on a device: columns that replace dead ones
  };
  struct BucketState {
    std::string parameters;  // text of parameters_of(), and the shapes of the factors
    std::vector<Pair> pairs;
    std::vector<std::pair<at::Tensor, at::Tensor>> whole;  // tensors that are sent uncompressed, and their places there
    at::Tensor flat_p, flat_q, flat_uncompressed, error, before;
    at::Tensor kept_q;      // flat_q before the reduction
    at::Tensor next_error;  // the error that this reduction leaves
    bool started = false, was_started = false;
  };
  BucketState& state_of(const GradientBucket& bucket);
  /// Drops the buckets of a checkpoint that this model does not have.
  void drop_loaded(int rank);
  void allocate(BucketState& state, const GradientBucket& bucket) const;
  void finish(BucketState& state, const GradientBucket& bucket, const comm::Communicator& group);
  /// Called when all buckets have arrived: keeps the new errors and factors, unless gradients were not finite.
  void end_reduction();
  static void restore(BucketState& state);
  /// A first factor for matrix i, equal on every rank.
  at::Tensor drawn(const BucketState& state, size_t bucket, size_t i) const;
  void revive_columns(BucketState& state, size_t bucket, size_t i) const;

  PowerSgdOptions options_;
  // Whether all of this reduction is finite so far, equal on every rank; undefined: nothing yet. On a device the host
  // does not read it.
  at::Tensor finite_;
  int64_t iteration_ = 0;
  std::vector<std::unique_ptr<BucketState>> states_;
  std::map<std::string, BucketState> loaded_;  // loaded states that no bucket has taken yet, by parameters
  int reductions_since_load_ = 0;
};

/// Names of the gradients in a bucket, then their shapes as they are factorized. Identifies the bucket's content.
/// Why: docs/decisions/0150-state-of-powersgd-goes-by-names.md.
std::string parameters_of(const GradientBucket& bucket) {
  std::string names, shapes;
  for (const auto& name : bucket.names) names += (names.empty() ? "" : ", ") + name;
  for (const auto& matrix : bucket.matrices) shapes += formatted(" {}x{}", matrix.size(0), matrix.size(1));
  for (const auto& tensor : bucket.rest) shapes += formatted(" {}", tensor.numel());
  return names + '\n' + shapes;
}

PowerSgdHook::BucketState& PowerSgdHook::state_of(const GradientBucket& bucket) {
  while (states_.size() <= bucket.index) states_.emplace_back();
  auto& state = states_[bucket.index];
  if (state) return *state;
  state = std::make_unique<BucketState>();
  allocate(*state, bucket);
  state->parameters = parameters_of(bucket);
  for (const auto& pair : state->pairs) state->parameters += formatted(" {}x{}", pair.q.size(0), pair.q.size(1));
  // Takes loaded factors and error. If PowerSGD's rank has changed, the sizes differ and the loaded state is dropped
  // later.
  const auto found = loaded_.find(state->parameters);
  if (found == loaded_.end() || found->second.flat_q.sizes() != state->flat_q.sizes()) return *state;
  state->flat_q.copy_(found->second.flat_q);
  state->started = found->second.started;
  if (found->second.error.defined()) state->error = found->second.error.to(bucket.flat.options());
  loaded_.erase(found);
  return *state;
}

void PowerSgdHook::drop_loaded(int rank) {
  for (const auto& [parameters, state] : std::exchange(loaded_, {}))
    if (rank == 0)
      log::warning(
          "MU570", ": PowerSGD starts from scratch for a bucket of the checkpoint that this model does not have, with ",
          parameters.substr(0, parameters.find('\n')),
          ": its factors are drawn again, and its error feedback is lost. Keep the parameters that are trained, "
          "the sizes of buckets and PowerSGD's rank as they were when the checkpoint was saved");
}

State PowerSgdHook::state_dict() const {
  State::List buckets;
  const auto add = [&](const BucketState& state) {
    buckets.push_back(State::Map{{"parameters", state.parameters},
                                 {"started", state.started},
                                 {"q", state.flat_q},
                                 {"error", state.error.defined() ? State(state.error) : State()}});
  };
  for (const auto& state : states_)
    if (state) add(*state);
  for (const auto& [_, state] : loaded_) add(state);
  return State::Map{{"iteration", iteration_}, {"buckets", std::move(buckets)}};
}

/// Keeps the loaded states. Buckets of this process are laid out when they first start, and take their state then.
void PowerSgdHook::load_state_dict(const State& state) {
  std::map<std::string, BucketState> loaded;
  // Copied to the host, because the stream on which it will be used is not known yet.
  const auto tensor = [](const State& from) {
    return from.empty() ? at::Tensor() : from.tensor().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  };
  for (const auto& saved : state.at("buckets").list()) {
    const auto* parameters = saved.find("parameters");
    const auto names = parameters ? parameters->text() : "parameters that are not known";
    auto& one = loaded[names];
    one.parameters = names;
    one.started = saved.at("started").boolean();
    one.flat_q = tensor(saved.at("q"));
    one.error = tensor(saved.at("error"));
  }
  iteration_ = state.at("iteration").integer();
  loaded_ = std::move(loaded);
  reductions_since_load_ = 0;
  states_.clear();
}

void PowerSgdHook::allocate(BucketState& state, const GradientBucket& bucket) const {
  for (const auto& tensor : bucket.rest) state.whole.push_back({tensor, {}});
  int64_t rows = 0, columns = 0, whole = 0;
  for (const auto& matrix : bucket.matrices) {
    const auto n = matrix.size(0), m = matrix.size(1), rank = std::min({n, m, options_.rank});
    if (static_cast<double>((n + m) * rank) * options_.min_compression_rate < static_cast<double>(n * m)) {
      state.pairs.push_back({matrix, {}, {}});
      rows += n * rank;
      columns += m * rank;
    } else {
      state.whole.push_back({matrix, {}});
    }
  }
  for (const auto& [tensor, place] : state.whole) whole += tensor.numel();
  state.flat_p = at::empty({rows}, factor_options(bucket.flat));
  state.flat_q = at::empty({columns}, factor_options(bucket.flat));
  state.flat_uncompressed = at::empty({whole}, bucket.flat.options());
  rows = columns = whole = 0;
  for (auto& [tensor, place] : state.whole) {
    place = state.flat_uncompressed.narrow(0, whole, tensor.numel()).view(tensor.sizes());
    whole += tensor.numel();
  }
  for (auto& pair : state.pairs) {
    const auto n = pair.matrix.size(0), m = pair.matrix.size(1), rank = std::min({n, m, options_.rank});
    pair.p = state.flat_p.narrow(0, rows, n * rank).view({n, rank});
    pair.q = state.flat_q.narrow(0, columns, m * rank).view({m, rank});
    rows += n * rank;
    columns += m * rank;
  }
}

at::Tensor PowerSgdHook::drawn(const BucketState& state, size_t bucket, size_t i) const {
  const auto& q = state.pairs[i].q;
  const auto options = state.flat_q.options();
  auto factor =
      first_factor(q.size(0), q.size(1), factor_seed(options_.seed, iteration_, bucket, i), options.device(at::kCPU));
  if (q.is_cpu()) return factor;
  const auto there = at::empty(q.sizes(), options);
  device::async_copy(kFactor, there, factor.pin_memory());
  return there;
}

/// Makes q orthonormal. Replaces columns that became zero for a gradient of lower rank, because they would stay zero.
void PowerSgdHook::revive_columns(BucketState& state, size_t bucket, size_t i) const {
  auto& pair = state.pairs[i];
  const auto dead = orthonormalize(pair.q);
  if (pair.q.is_cpu()) {
    if (!dead.any().item<bool>()) return;
    pair.q.add_(drawn(state, bucket, i) * dead);
    orthonormalize(pair.q);
    return;
  }
  if (!pair.spare.defined()) pair.spare = drawn(state, bucket, i);
  const auto revived = pair.q + pair.spare * dead;
  orthonormalize(revived);
  pair.q.copy_(at::where(dead.any(), revived, pair.q));
}

CommHook::Finish PowerSgdHook::start(const GradientBucket& bucket, const comm::Communicator& group) {
  if (iteration_ < options_.start_iteration)
    return [this, work = group.start_all_reduce(bucket.flat, comm::ReduceOp::sum), last = bucket.last]() mutable {
      work.wait();
      iteration_ += last;
    };
  auto& state = state_of(bucket);
  if (options_.use_error_feedback) {
    if (state.error.defined()) bucket.flat.add_(state.error);
    state.before = bucket.flat.clone();
  }
  if (bucket.index == 0) finite_ = at::Tensor();
  if (state.kept_q.defined()) restore(state);  // the previous reduction was not completed
  state.was_started = state.started;
  state.kept_q = state.flat_q.clone();
  for (const auto& [tensor, place] : state.whole) place.copy_(tensor);
  if (!state.started || !options_.warm_start)
    for (size_t i = 0; i < state.pairs.size(); ++i) state.pairs[i].q.copy_(drawn(state, bucket.index, i));
  if (!state.started && !state.flat_q.is_cpu()) {
    // The host will not learn whether this reduction is finite, so it could not draw the factors again.
    state.kept_q.copy_(state.flat_q);
    state.was_started = true;
  }
  state.started = true;
  for (size_t i = 0; i < state.pairs.size(); ++i) {
    revive_columns(state, bucket.index, i);
    auto& pair = state.pairs[i];
    pair.p.copy_(at::matmul(pair.matrix.to(pair.q.scalar_type()), pair.q));
  }
  std::vector<comm::Work> works;
  if (state.flat_uncompressed.numel() > 0)
    works.push_back(group.start_all_reduce(state.flat_uncompressed, comm::ReduceOp::sum));
  if (state.flat_p.numel() > 0) works.push_back(group.start_all_reduce(state.flat_p, comm::ReduceOp::sum));
  return [this, &state, &bucket, &group, works]() mutable {
    for (auto& work : works) work.wait();
    finish(state, bucket, group);
  };
}

void PowerSgdHook::finish(BucketState& state, const GradientBucket& bucket, const comm::Communicator& group) {
  for (const auto& [tensor, place] : state.whole) tensor.copy_(place);
  for (auto& pair : state.pairs) {
    orthonormalize(pair.p);
    pair.q.copy_(at::matmul(pair.matrix.to(pair.p.scalar_type()).t(), pair.p));
  }
  if (state.flat_q.numel() > 0) group.all_reduce(state.flat_q, comm::ReduceOp::sum);
  for (auto& pair : state.pairs) pair.matrix.copy_(at::matmul(pair.p, pair.q.t()));
  if (options_.use_error_feedback) {
    // The new error is this rank's 1/size share of what compression lost. `before` is this rank's gradient times
    // 1/size, and bucket.flat the mean over all ranks, of which this rank's share is 1/size.
    state.next_error = state.before.sub_(bucket.flat, 1.0 / group.size());
    for (const auto& [tensor, place] : state.whole)
      state.next_error.narrow(0, tensor.storage_offset() - bucket.flat.storage_offset(), tensor.numel()).zero_();
  }
  const auto finite = bucket.flat.mul(0).sum().eq(0);
  finite_ = finite_.defined() ? finite_.logical_and(finite) : finite;
  if (!bucket.last) return;
  end_reduction();
  // A parameter that was just unfrozen first reaches the hook one reduction later.
  if (!loaded_.empty() && ++reductions_since_load_ > 1) drop_loaded(group.rank());
}

void PowerSgdHook::end_reduction() {
  ++iteration_;
  for (auto& state : states_) {
    if (!state || !state->kept_q.defined()) continue;
    if (!finite_.is_cpu()) {  // the device does what the host would do if it knew whether the reduction is finite
      state->flat_q.copy_(at::where(finite_, state->flat_q, state->kept_q));
      if (const auto& next = state->next_error; next.defined())
        state->error = at::where(finite_, next, state->error.defined() ? state->error : at::zeros_like(next));
    } else if (finite_.item<bool>()) {
      state->error = state->next_error;
    } else {
      restore(*state);
    }
    state->next_error = state->kept_q = at::Tensor();
  }
}

void PowerSgdHook::restore(BucketState& state) {
  state.flat_q.copy_(state.kept_q);
  state.started = state.was_started;
}

}  // namespace

std::shared_ptr<CommHook> make_power_sgd_hook(const PowerSgdOptions& options) {
  const auto require = [](bool good, std::string_view option, auto value, std::string_view wanted) {
    if (!good)
      throw ConfigError("MU158", formatted("PowerSGD's option {} is {}; it must be {}", option, value, wanted));
  };
  require(options.rank > 0, "rank", options.rank, "at least 1");
  require(options.min_compression_rate > 0, "min_compression_rate", options.min_compression_rate, "above 0");
  require(options.start_iteration >= 0, "start_iteration", options.start_iteration, "at least 0");
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace muster::parallel
