#include "parallel/sharded/sharded_engine.h"

#include <exception>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include "base/text.h"
#include "comm/agreement.h"
#include "comm/shared_tensor.h"
#include "muster/base/error.h"
#include "muster/tree/detail/pack.h"
#include "parallel/local.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kBuilt{"fsdp: shards are gathered after they were filled"};
constexpr device::SyncPoint kBegin{"fsdp: gradients are reduced after what precedes their backward"};
constexpr device::SyncPoint kReduced{"fsdp: what follows the backward reads reduced gradients"};

std::vector<std::vector<at::Tensor>> gradients_before(const std::vector<UnitPlan>& plans) {
  std::vector<std::vector<at::Tensor>> all;
  for (const auto& plan : plans) {
    auto& own = all.emplace_back();
    for (const auto& [name, tensor] : plan.parameters) own.push_back(tensor.unsafeGetTensorImpl()->grad());
  }
  return all;
}

constexpr const char* kJoined = "ranks with uneven inputs";

/// What JoinEvent::gather tells: the unit, and whether its values come from what ranks kept after a forward.
int64_t gather_detail(size_t unit, bool from_post_forward) {
  return static_cast<int64_t>(2 * unit + (from_post_forward ? 1 : 0));
}

bool within_backward() { return hook::current_backward() >= 0; }

/// See Joinable::gradient_states().
char state_of(bool has_gradient, bool requires_grad) {
  return static_cast<char>('0' + (has_gradient ? 1 : 0) + (requires_grad ? 2 : 0));
}

std::string name_of(const ShardedUnit& unit, const NamedTensor& parameter) {
  return "parameter '" + parameter.name + "' of unit '" + unit.name() + "'";
}

constexpr device::SyncPoint kUpdated{"fsdp: shards are gathered after their update"};
constexpr device::SyncPoint kGathers{"fsdp: shards are updated after the gathers that read them"};
constexpr device::SyncPoint kEnd{"fsdp: memory is freed after the gathers and reductions of a model"};

/// The error of this rank, or else an error that says what another rank threw; null if none threw. Collective.
std::exception_ptr shared_error(const comm::Communicator& group, const std::exception_ptr& own) {
  const auto run = [&] {
    if (own) std::rethrow_exception(own);
    return std::string();
  };
  const auto raise = [&](const comm::Failure& failure) {
    if (failure.id == "MU191") throw UsageError(failure.id, failure.message);  // it came from another group
    throw UsageError(
        "MU191", "nothing was written back by summon_full_params, since its function failed on another rank: rank " +
                     std::to_string(failure.rank) + ": " + failure.text());
  };
  try {
    comm::all_gather_result(group, "the end of summon_full_params", run, raise);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

constexpr std::array<const char*, 4> kStageTitles{"ddp", "zero1", "zero2", "fsdp"};

/// The two largest of these sizes, and the sum of all that are marked.
struct Largest {
  int64_t marked = 0, first = 0, second = 0;
  void add(int64_t size, bool mark) {
    if (mark) marked += size;
    else if (size > first) second = std::exchange(first, size);
    else second = std::max(second, size);
  }
  int64_t sum() const { return marked + first + second; }
};

/// Bytes of values and gradients that a rank holds permanently, and at its peak.
std::pair<int64_t, int64_t> needs_of(const Units& units, const ShardSettings& settings) {
  int64_t rest = 0, all = 0;
  Largest whole, gradients;
  for (const auto& unit : units) {
    rest += unit->held_bytes();
    const auto gathered = unit->values().has_one_copy() ? 0 : unit->values().full_bytes();
    all += gathered;
    whole.add(gathered, unit->is_root());
    if (unit->trainable_count() > 0 && settings.stage != ShardStage::optimizer)
      gradients.add(unit->padded_elements() * static_cast<int64_t>(c10::elementSize(
                                                  settings.reduce_dtype.value_or(unit->local(0).value.scalar_type()))),
                    unit->is_root());
  }
  const auto live = settings.keeps_after_forward ? all : std::max(std::min(settings.limit_bytes, all), whole.sum());
  const auto kept = settings.post_forward_size > 0 ? all / settings.post_forward_size : 0;
  return {rest, rest + (settings.keeps_params_unsharded() ? 0 : live + kept) + gradients.sum()};
}

}  // namespace

bool ArrivedGradients::take() {
  const bool any = unfrozen_ || std::ranges::any_of(arrived_, [](size_t count) { return count > 0; });
  std::ranges::fill(arrived_, 0);
  unfrozen_ = false;
  return any;
}

// In stage full, an access outside of a forward is an error already (MU161).
ShardedEngine::ShardedEngine(ShardedModel& model, torch::nn::Module& module, ShardGroups groups, ShardSettings settings)
    : module(module), groups(std::move(groups)), settings(settings), participants(this->groups.size()), model_(model),
      watch(*this, BackwardWatch::Threads::one, /*checks_bypass=*/settings.keeps_params_unsharded()) {}

void ShardedEngine::build(std::vector<UnitPlan> plans) {
  const auto early = gradients_before(plans);
  if (settings.one_copy_per_host && comm::part_alignment(groups.shards) > 0)
    one_copy = std::make_unique<OneCopy>(groups.shards);
  if (!plans.empty()) streams = ShardStreams::of(plans.front().parameters.front().tensor.device());
  for (auto& plan : plans)
    units.push_back(std::make_unique<ShardedUnit>(std::move(plan), groups, settings, streams, buffers, one_copy.get(),
                                                  weak_from_this(), static_cast<int64_t>(units.size())));
  for (const auto& stream : {streams.unshard, streams.reduce})
    device::wait_stream(kBuilt, stream, device::current_stream(streams.accelerator));
  if (one_copy) groups.shards.internal("first values").barrier();
  share_gradient_memory();
  unshard_scheduler_.emplace(units, settings, [this](size_t unit) {
    participants.announce(JoinEvent::gather, gather_detail(unit, units[unit]->values().has_post_forward_shard()));
  });
  reductions_.emplace(units, groups, settings, [this](size_t unit) MUSTER_NO_THREAD_SAFETY_ANALYSIS {  // called with it
    announce_reduction();
    participants.announce(JoinEvent::reduction, static_cast<int64_t>(unit));
  });
  std::vector<NamedTensor> parameters;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < units[u]->size(); ++i) {
      places[units[u]->parameter(i).tensor.unsafeGetTensorImpl()] = {u, i};
      parameters.push_back(units[u]->parameter(i));
      if (units[u]->trainable(i)) hook_up(u, i);
    }
  }
  freezing_ = FreezingAgreement(std::move(parameters));
  // Gradients that already exist count as those of a backward in no_sync.
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < units[u]->size(); ++i)
      if (early[u][i].defined() && units[u]->trainable(i))
        units[u]->take_gradient(i, early[u][i].to_dense(), /*last=*/false);
    units[u]->show_placeholders();
  }
}

void ShardedEngine::share_gradient_memory() {
  int64_t bytes = 0;
  for (const auto& unit : units)
    if (unit->gradients()) bytes = std::max(bytes, unit->gradients()->pool_bytes());
  if (bytes == 0) return;
  const auto kind = at::TensorOptions(at::kByte).device(units.front()->parameter(0).tensor.device());
  for (size_t k = 0; k < ReductionScheduler::kMaxInFlight; ++k) {
    auto memory = comm::try_shared_zeros(groups.shards, bytes, kind);
    if (!memory.defined()) return;
    buffers.add_shared(std::move(memory));
  }
}

void ShardedEngine::hook_up(size_t u, size_t i) {
  places_of_leaves_.emplace_back(u, i);
  watch.watch(units[u]->parameter(i));
}

void ShardedEngine::refuse(const hook::StorageAccess& access) const {
  const bool gradient = access.owner_id < 0;
  const auto& unit = *units[gradient ? ~access.owner_id : access.owner_id];
  const auto what = name_of(unit, unit.parameter_of(access.tensor));
  const auto op = std::string(access.op);
  if (gradient)
    throw UsageError("MU167", op + " reads the gradient of " + what +
                                  ", of which each rank holds only a part: step and clear gradients by the "
                                  "prepared optimizer, read their norm by model.grad_norm(), and clip by "
                                  "accelerator.clip_grad_norm_(model, max_norm) or fabric.clip_gradients, not by "
                                  "torch::nn::utils::clip_grad_norm_");
  if (access.writes && scope_ == FullScope::reads)
    throw UsageError("MU190",
                     op + " writes " + what +
                         " in a summon_full_params scope that only reads, so the write would be lost: open the scope "
                         "with .writeback = true");
  if (access.writes)
    throw UsageError(
        "MU162",
        op + " writes " + what +
            ", which is sharded: the write would be lost: step by the prepared optimizer, and change values before "
            "the module is prepared, or in summon_full_params with .writeback = true; load weights by "
            "load_model(model, path), not torch::load");
  throw UsageError("MU161",
                   op + " needs " + what +
                       " outside a forward, where its values are sharded: call the prepared model, or model.run(...) "
                       "for any other function of the module; write weights by save_model, not torch::save, and read "
                       "or change them in summon_full_params");
}

/// Whether a scope of full values allows this operator.
bool ShardedEngine::accessed_in_scope(const hook::StorageAccess& access) const {
  return access.owner_id >= 0 && scope_ != FullScope::none && units[access.owner_id]->values().full_params_open() &&
         (!access.writes || scope_ == FullScope::writes);
}

void ShardedEngine::before_access(const hook::StorageAccess& access) {
  base::Lock lock(watch.mutex());
  if (accessed_in_scope(access)) return unshard_scheduler_->hold(access.owner_id);
  const bool backward = within_backward();
  const bool running = watch.inside_forward() || backward;
  if (access.owner_id < 0 || access.writes || scope_ != FullScope::none ||
      !(running || settings.keeps_params_unsharded()))
    refuse(access);
  if (backward) watch.reach();
  if (backward && sync) reductions_->on_backward_reached(static_cast<size_t>(access.owner_id));
  units[access.owner_id]->values().keep_post_forward_shard(!backward && at::GradMode::is_enabled());
  unshard_scheduler_->use(access.owner_id, backward ? Pass::backward : Pass::forward,
                          settings.keeps_after_forward && (backward || at::GradMode::is_enabled()),
                          backward ? access.replay : 0);
}

void ShardedEngine::after_access(int64_t owner_id) noexcept {
  base::Lock lock(watch.mutex());
  unshard_scheduler_->leave(owner_id);
}

void ShardedEngine::check_parameters() const {
  for (const auto& unit : units) {
    if (const auto name = unit->misplaced(); !name.empty())
      throw UsageError("MU163", "parameter '" + name + "' of unit '" + unit->name() +
                                    "' was given other memory (Module::to, set_data, torch::load) "
                                    "after its module was prepared: move and convert modules before, and load weights "
                                    "afterwards with load_model(model, path)");
  }
}

void ShardedEngine::enter_forward() {
  if (scope_ != FullScope::none)
    throw UsageError("MU169",
                     "a forward of the model runs inside summon_full_params, where its parameters do not belong to the "
                     "engine: leave the scope first");
  if (watch.forward_begins()) {
    check_parameters();
    watch.begin_forward();
    watch_unfrozen();
    if (!settings.keeps_after_forward) unshard_scheduler_->reshard_all(/*keep_roots=*/false);
    free_post_forward_shards();
    name_gathers(
        in_session_or(module.is_training() && at::GradMode::is_enabled() ? "training" : comm::kEvaluationLabel));
    unshard_scheduler_->begin(Pass::forward);
    exceptions_ = std::uncaught_exceptions();
  }
  watch.enter_forward();
}

void ShardedEngine::leave_forward() noexcept {
  if (!watch.leave_forward() || within_backward()) return;
  const bool threw = std::uncaught_exceptions() > exceptions_, trains = at::GradMode::is_enabled() && !threw;
  forward_trained_ |= trains;
  try {
    if (!threw) unshard_scheduler_->end(Pass::forward);
    if (!trains || !settings.keeps_after_forward) unshard_scheduler_->reshard_all(/*keep_roots=*/trains);
  } catch (const std::exception&) {
    // Releasing waits for nothing, so only an allocation can fail here.
  }
  if (!trains) buffers.trim();
}

void ShardedEngine::begin_backward(BackwardState) {
  if (scope_ != FullScope::none)
    throw UsageError(
        "MU169",
        "backward runs inside summon_full_params, where parameters do not belong to the engine: leave the scope first");
  std::vector<size_t> awaited;
  for (auto& unit : units) {
    unit->hide_placeholders();
    awaited.push_back(unit->awaited_count());
  }
  arrived_.begin(awaited);
  device::wait_stream(kBegin, streams.reduce, device::current_stream(streams.accelerator));
  reductions_->begin(awaited, freezing_.is_outdated());
  name_gathers(in_session_or("backward"));
  // A runtime begins a backward of all its models, including those that no loss goes through.
  unshard_scheduler_->begin(Pass::backward, std::exchange(forward_trained_, false));
}

void ShardedEngine::start_reductions() { reductions_->start_alone(); }

/// The first call of a backward that was not announced hides the placeholders here.
void ShardedEngine::before_gradient(size_t) { watch.reach(); }

void ShardedEngine::gradient_arrived(size_t leaf, const at::Tensor& parameter) {
  const auto [u, i] = places_of_leaves_[leaf];
  auto& unit = *units[u];
  if (sync) announce_reduction();
  // Taken away at once: autograd would add the next gradient to it, and it would stay on this rank in full.
  const at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (!unit.trainable(i)) {
    arrived_.add_unfrozen();
    unit.take_gradient(i, gradient, /*last=*/sync);
    return;
  }
  if (arrived_.are_complete(u))
    reductions_->reopen(u);  // a second pass over the unit: its gradients are summed at the end
  unit.take_gradient(i, gradient, /*last=*/sync);
  if (!arrived_.add(u)) return;
  if (sync) reductions_->complete(u);
  unshard_scheduler_->reshard(u);
}

void ShardedEngine::end_backward(BackwardState what, bool) {
  bool any = arrived_.take();
  if (what == BackwardState::alone) reduce();
  unshard_scheduler_->end(Pass::backward);
  unshard_scheduler_->reshard_all(/*keep_roots=*/false);
  free_post_forward_shards();
  for (const auto& unit : units)
    any |= what != BackwardState::unannounced && unit->gradients() && unit->gradients()->has_unsharded_grads();
  if (any && sync) reduce();
  reductions_->wait();
  device::wait_stream(kReduced, device::current_stream(streams.accelerator), streams.reduce);
  buffers.trim();
  for (auto& unit : units) unit->show_placeholders();
}

/// Gradients that have waited since before stay, if this backward brought none.
void ShardedEngine::discard_backward() noexcept {
  announced_ = false;
  if (arrived_.take() || reductions_->is_running()) reductions_->cancel();
  else reductions_->record_end();
}

void ShardedEngine::reduce() {
  announce_reduction();
  reductions_->start_rest();
  if (std::exchange(announced_, false)) participants.announce(JoinEvent::reductions_end);
  reductions_->wait();
  if (reductions_->any_freezing_change() || (!reductions_->any() && freezing_.is_outdated())) agree_on_freezing();
  ++reduction_count;
  if (participants.group()) module_buffers.broadcast(*participants.group(), participants.root());
  else module_buffers.broadcast(groups);
  reductions_->record_end();
}

void ShardedEngine::announce_reduction() {
  if (!participants.in_session() || std::exchange(announced_, true)) return;
  participants.report(tree::pack(gradient_states()));
  adopt_divisor();
}

void ShardedEngine::follow(const JoinStep& step) {
  const auto unit = static_cast<size_t>(step.detail);
  name_gathers(kJoined);
  switch (step.event) {
    case JoinEvent::gather: return unshard_scheduler_->follow_gather(unit / 2, /*from_post_forward=*/unit % 2 != 0);
    case JoinEvent::reduction: return reductions_->start_alone(unit);
    case JoinEvent::reductions_end:
      watch.end_alone();
      participants.include_all();
      return adopt_divisor();
    case JoinEvent::gradients:
      forward_trained_ = false;  // this rank's last forward tells nothing about the units that come next
      adopt_gradient_states(tree::unpack<std::string>(step.more));
      watch_unfrozen();
      participants.set(step);
      watch.start_alone();
      return adopt_divisor();
    case JoinEvent::finished:
    case JoinEvent::failed:
    case JoinEvent::program: return;  // no model announces these
  }
}

/// Ranks have made different passes, and must gather the same units in the next one.
void ShardedEngine::end_session() {
  watch.discard_alone();
  announced_ = forward_trained_ = false;
  participants.include_all();
  adopt_divisor();
  unshard_scheduler_->forget_passes();
  free_post_forward_shards();
}

std::string ShardedEngine::gradient_states() const {
  std::string states;
  for (const auto& unit : units)
    for (size_t i = 0; i < unit->size(); ++i)
      states += state_of(unit->has_reduced_gradient(i), unit->parameter(i).tensor.requires_grad());
  return states;
}

void ShardedEngine::adopt_gradient_states(const std::string& states) {
  size_t at = 0;
  for (const auto& unit : units)
    for (size_t i = 0; i < unit->size(); ++i) {
      const auto& parameter = unit->parameter(i).tensor;
      const bool has = unit->has_reduced_gradient(i);
      const auto theirs = states.at(at++) - '0';
      if (parameter.requires_grad() != (theirs >= 2)) parameter.requires_grad_(theirs >= 2);
      if (has && theirs % 2 == 0) unit->drop_reduced_gradient(i);
      if (!has && theirs % 2 != 0)
        throw UsageError("MU118", "inside join_uneven_inputs, this rank has cleared the gradient of " +
                                      name_of(*unit, unit->parameter(i)) +
                                      ", which ranks that still have batches have not used yet: clear gradients in "
                                      "the steps of the loop, and not after it");
    }
}

void ShardedEngine::adopt_divisor() {
  for (const auto& unit : units)
    if (unit->gradients()) unit->gradients()->set_divisor(participants.divisor());
}

const char* ShardedEngine::in_session_or(const char* purpose) const {
  return participants.in_session() ? kJoined : purpose;
}

void ShardedEngine::name_gathers(const char* purpose) {
  for (auto& unit : units) unit->values().label_gathers(purpose);
}

void ShardedEngine::free_post_forward_shards() {
  for (auto& unit : units) unit->values().free_post_forward_shard();
}

void ShardedEngine::end_update(const std::vector<bool>& of_units) {
  const auto publish = [&] {
    for (size_t u = 0; u < units.size(); ++u) {
      if (!of_units[u]) continue;
      units[u]->values().write_to_shared_copy();
      one_copy->note("update", units[u]->name());
    }
    one_copy->end_update();
  };
  if (one_copy) in_update(publish);
  update(of_units);
}

bool ShardedEngine::abandon_update(const std::string& cause) {
  if (!one_copy) return false;
  if (one_copy->is_updating()) one_copy->tear(cause);
  if (!one_copy->is_torn()) return false;
  for (auto& unit : units) unit->values().forget();
  unshard_scheduler_->recount();
  return true;
}

void ShardedEngine::in_update(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    abandon_update(error.what());
    throw;
  }
}

ShardedEngine::~ShardedEngine() {
  if (streams.accelerator.is_cpu()) return;
  try {
    const auto current = device::current_stream(streams.accelerator);
    for (const auto& stream : {streams.unshard, streams.reduce}) device::wait_stream(kEnd, current, stream);
    for (auto& unit : units) unit->release_memory();
  } catch (const std::exception&) {  // the device has failed, and its memory is not used again
  }
}

void ShardedEngine::begin_update() {
  wait_for_values();
  device::wait_stream(kGathers, device::current_stream(streams.accelerator), streams.unshard);
  if (one_copy) in_update([this] { one_copy->begin_update(); });
}

void ShardedEngine::update(const std::vector<bool>& of_units) {
  device::wait_stream(kUpdated, streams.unshard, device::current_stream(streams.accelerator));
  name_gathers("new values");
  for (size_t u = 0; u < units.size(); ++u)
    if (of_units[u]) unshard_scheduler_->update(u);
}

void ShardedEngine::wait_for_values() {
  if (!settings.keeps_params_unsharded()) return;
  for (size_t u = 0; u < units.size(); ++u) unshard_scheduler_->wait(u);
}

void ShardedEngine::begin_full_params(const FullParamsOptions& how) {
  base::Lock lock(watch.mutex());
  if (scope_ != FullScope::none || watch.inside_forward() || within_backward())
    throw UsageError("MU169",
                     "summon_full_params runs inside a forward, a backward or another summon_full_params of the model: "
                     "call it between steps");
  watch.discard();
  unshard_scheduler_->reshard_all(/*keep_roots=*/false);
  name_gathers("summon_full_params");
  for (auto& unit : units) unit->values().begin_full_params(how.rank0_only, how.writeback);
  unshard_scheduler_->recount();
  scope_ = how.writeback ? FullScope::writes : FullScope::reads;
}

void ShardedEngine::end_full_params(const FullParamsOptions& how, bool write_back) {
  base::Lock lock(watch.mutex());
  scope_ = FullScope::none;
  const bool updates = one_copy && write_back;
  const auto end = [&] {
    if (updates) one_copy->begin_update();
    for (auto& unit : units) unit->values().end_full_params(how, write_back);
    if (updates) one_copy->end_update();
  };
  updates ? in_update(end) : end();
  unshard_scheduler_->recount();
  buffers.trim();
}

void ShardedEngine::with_full_params(const std::function<void()>& f, const FullParamsOptions& how) {
  begin_full_params(how);
  std::exception_ptr error;
  try {
    f();
  } catch (...) {
    error = std::current_exception();
  }
  error = shared_error(groups.replicas, shared_error(groups.shards, error));
  end_full_params(how, how.writeback && !error);
  if (error) std::rethrow_exception(error);
}

void ShardedEngine::watch_unfrozen() {
  for (const auto& [name, tensor] : freezing_.frozen()) {
    if (!tensor.requires_grad() || watch.watches(tensor)) continue;
    const auto [u, i] = *place(tensor);
    units[u]->allocate_gradients();
    hook_up(u, i);
  }
}

void ShardedEngine::agree_on_freezing() {
  freezing_.renew(groups.shards, groups.replicas);
  watch_unfrozen();
  std::set<size_t, std::greater<>> touched;
  for (const auto& [name, tensor] : freezing_.take_unfrozen()) {
    const auto [u, i] = *place(tensor);
    units[u]->add_unfrozen(i);
    touched.insert(u);
  }
  reductions_->add_units({touched.begin(), touched.end()});
  reductions_->wait();
}

std::string ShardedEngine::describe() const {
  base::Lock lock(watch.mutex());
  const bool twice = !settings.keeps_params_unsharded() && !settings.keeps_after_forward;  // in forward and in backward
  int64_t elements = 0;
  for (const auto& unit : units) elements += unit->elements();
  const auto gathered = static_cast<size_t>(
      std::count_if(units.begin(), units.end(), [](const auto& u) { return !u->values().has_one_copy(); }));
  const auto reduced =
      std::count_if(units.begin(), units.end(), [](const auto& unit) { return unit->trainable_count() > 0; });
  const bool rooted = std::any_of(units.begin(), units.end(),
                                  [](const auto& unit) { return unit->is_root() && !unit->values().has_one_copy(); });
  const auto [rest, peak] = needs_of(units, settings);
  std::ostringstream text;
  text << kStageTitles[static_cast<size_t>(settings.stage)] << ": "
       << counted(static_cast<size_t>(groups.size()), "rank");
  if (groups.replicas.size() > 1)
    text << " (" << groups.replicas.size() << " replicas of " << groups.shards.size() << " shards)";
  text << ", " << counted(units.size(), "unit") << " ("
       << first_names(units, [](const auto& unit) { return unit->name(); }) << "), " << elements
       << " parameters; each rank holds " << size_text(rest) << " of values and gradients at rest and "
       << size_text(peak) << " at peak; ";
  if (gathered < units.size())
    text << "the " << groups.shards.size() << " ranks of a host have one copy of the values of "
         << counted(units.size() - gathered, "unit") << " in common; ";
  const char* why =
      one_copy ? "memory for a common one was refused" : "the ranks of the shards do not all share memory";
  if (settings.one_copy_per_host && gathered > 0 && groups.shards.size() > 1)
    text << "each rank gathers its own copy, since " << why << "; ";
  text << "a step takes " << gathered * (twice ? 2 : 1) << " gathers";
  if (twice && rooted) text << " (the root's one less)";
  if (settings.post_forward_size > 0 && gathered > 0)
    text << ", in backward over " << settings.post_forward_size << " neighbours,";
  text << " and " << reduced << " reductions";
  return text.str();
}

ShardedModel::Stats ShardedEngine::stats() const {
  base::Lock lock(watch.mutex());
  ShardedModel::Stats stats;
  stats.gathered_bytes = unshard_scheduler_->live_bytes();
  stats.peak_gathered_bytes = unshard_scheduler_->peak_bytes();
  stats.gathers = unshard_scheduler_->gathers();
  stats.reductions = reductions_->started();
  for (const auto& unit : units) {
    stats.units.push_back(unit->name());
    stats.held_bytes += unit->held_bytes();
    if (const auto* gradients = unit->gradients()) stats.gradient_bytes += gradients->held_bytes();
  }
  stats.held_bytes += buffers.shared_bytes();
  stats.temporary_bytes = buffers.bytes();
  stats.peak_temporary_bytes = buffers.peak_bytes();
  return stats;
}

}  // namespace muster::parallel
