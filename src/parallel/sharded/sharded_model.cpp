#include "parallel/sharded_model.h"

#include <cmath>

#include <torch/nn/module.h>

#include "base/log.h"
#include "comm/agreement.h"
#include "device/memory.h"
#include "hook/watched_storage.h"
#include "muster/optim/detail/norm.h"
#include "optim/device_norm.h"
#include "optim/parameter_groups.h"
#include "parallel/local.h"
#include "parallel/sharded/sharded_engine.h"
#include "parallel/sharded/units.h"
#include "parallel/sync_batch_norm.h"
#include "shard/device_mesh.h"

namespace muster::parallel {
namespace {

std::vector<std::string> lines_of(const std::vector<UnitPlan>& plans, const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  for (const auto& plan : plans)
    for (const auto& line : describe_tensors(plan.parameters, {})) lines.push_back(line + ", unit " + plan.name);
  for (const auto& line : describe_tensors({}, buffers)) lines.push_back(line);
  return lines;
}

void warn_of_lost_marks() {
  for (const auto& name : take_lost_marks())
    log::warning("MU249", ": a ", name,
                 " was given to muster::wrap(), and no model that was prepared holds it, so it is not a unit: wrap the "
                 "module that is registered, and before the model is prepared");
}

/// Adds up, in place, an unrounded power sum over the ranks.
void add_over(const comm::Communicator& shards, const at::Tensor& sum, double p) {
  if (shards.size() == 1) return;
  shards.internal("the norm of sharded gradients")
      .all_reduce(sum, std::isinf(p) ? comm::ReduceOp::max : comm::ReduceOp::sum);
}

}  // namespace

ShardedModel::ShardedModel(torch::nn::Module& module, comm::Communicator group, const ShardedOptions& options)
    : ShardedModel(module, std::move(group), comm::Communicator(), options) {}

ShardedModel::ShardedModel(torch::nn::Module& module, comm::Communicator shards, comm::Communicator replicas,
                           const ShardedOptions& options) {
  const auto settings = read_settings(options, shards.size());
  hook::install_storage_interceptors();
  auto plans = plan_units(module, options);
  const auto buffers = distinct_buffers(module);
  for (const auto& plan : plans) require_sendable(plan.parameters, buffers);
  const auto lines = lines_of(plans, buffers);
  comm::require_same_lines(shards, lines);
  comm::require_same_lines(replicas, lines);
  const auto post_forward =
      settings.post_forward_size > 0
          ? DeviceMesh(shards, {{"outer", 0}, {"post_forward", settings.post_forward_size}}).group("post_forward")
          : comm::Communicator();
  engine_ = std::make_shared<ShardedEngine>(
      *this, module, ShardGroups{std::move(shards), std::move(replicas), post_forward}, settings);
  engine_->build(std::move(plans));
  if (settings.buffer_dtype)
    engine_->module_buffers.convert(buffers_to_convert(module, options), *settings.buffer_dtype);
  engine_->module_buffers.adopt(buffers);
  engine_->module_buffers.broadcast(engine_->groups);
  device::release_freed_memory();  // the freed full parameters leave gaps between the shards, too small to reuse
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::enter_forward() {
  base::Lock lock(engine_->watch.mutex());
  engine_->enter_forward();
}

void ShardedModel::leave_forward() noexcept {
  base::Lock lock(engine_->watch.mutex());
  engine_->leave_forward();
}

void ShardedModel::before_backward() {
  if (hook::current_backward() >= 0) return;  // within another backward
  const auto& groups = engine_->groups;
  if (groups.shards.rank() == 0 && groups.replicas.rank() == 0) warn_of_lost_marks();
  base::Lock lock(engine_->watch.mutex());
  engine_->watch.announce();
}

void ShardedModel::after_backward() {
  base::Lock lock(engine_->watch.mutex());
  engine_->watch.end_announced();
}

void ShardedModel::fail_backward() noexcept {
  base::Lock lock(engine_->watch.mutex());
  engine_->watch.fail();
}

void ShardedModel::broadcast_buffers() {
  base::Lock lock(engine_->watch.mutex());
  engine_->module_buffers.broadcast(engine_->groups);
}

void ShardedModel::set_gradient_sync(bool on) { engine_->sync = on; }
bool ShardedModel::gradient_sync() const { return engine_->sync; }

void ShardedModel::start_reduction() {
  base::Lock lock(engine_->watch.mutex());
  if (!engine_->settings.keeps_params_unsharded()) return;
  engine_->watch.start_alone();
  engine_->start_reductions();
}

void ShardedModel::finish_reduction() {
  base::Lock lock(engine_->watch.mutex());
  if (engine_->settings.keeps_params_unsharded()) engine_->watch.end_alone();
}

int64_t ShardedModel::reduction_count() const { return engine_->reduction_count; }
void ShardedModel::register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) {
  engine_->register_with(record, index);
}

bool ShardedModel::has_gradients() const {
  for (const auto& unit : engine_->units)
    for (size_t i = 0; i < unit->size(); ++i)
      if (unit->gradients() && unit->gradients()->has_sharded_grad(i)) return true;
  return false;
}

double ShardedModel::gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) {
  const auto device = engine_->units.empty() ? at::Device(at::kCPU) : engine_->units.front()->local(0).value.device();
  if (!device.is_cpu()) return device_gradient_power_sum(parameters, p, device).item<double>();
  const auto sum = optim::unrounded_power_sum(gradients_of(*this, parameters), p);
  add_over(engine_->groups.shards, sum, p);
  return optim::rounded_power_sum(sum, p);
}

at::Tensor ShardedModel::device_gradient_power_sum(const std::vector<at::Tensor>& parameters, double p,
                                                   at::Device device) {
  const auto sum = optim::device_unrounded_power_sum(gradients_of(*this, parameters), device, p);
  add_over(engine_->groups.shards, sum, p);
  return optim::device_rounded_power_sum(sum, p);
}

void ShardedModel::for_each_gradient(const std::vector<at::Tensor>& parameters,
                                     const std::function<void(const at::Tensor&)>& f) {
  for (const auto& parameter : optim::distinct_tensors(parameters)) {
    const auto* local = find(parameter);
    // has_gradient() comes before the size, because it must throw on ranks without a part of the parameter, too.
    if (local && has_gradient(parameter) && local->gradient.numel() > 0) f(local->gradient);
  }
}

void ShardedModel::scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
  for (const auto& parameter : optim::distinct_tensors(parameters))
    if (const auto* place = engine_->place(parameter))
      if (auto* gradients = engine_->units[place->first]->gradients()) gradients->scale(place->second, factor);
}

GradientParts ShardedModel::gradient_parts(const at::Tensor& parameter) {
  const auto* place = engine_->place(parameter);
  return place ? engine_->units[place->first]->gradient_parts(place->second) : ManagedModel::gradient_parts(parameter);
}

void ShardedModel::load_gradient(const at::Tensor& parameter, const GradientParts& parts) {
  if (const auto* place = engine_->place(parameter)) engine_->units[place->first]->load_gradient(place->second, parts);
  else ManagedModel::load_gradient(parameter, parts);
}

std::vector<std::pair<std::string, at::Tensor>> ShardedModel::full_state(bool main_only) {
  if (engine_->one_copy) engine_->one_copy->require_whole();
  std::unordered_map<const c10::TensorImpl*, at::Tensor> whole;
  for (const auto& unit : engine_->units) {
    auto tensors = unit->values().full_params(main_only);
    for (size_t i = 0; i < unit->size(); ++i) whole[unit->parameter(i).tensor.unsafeGetTensorImpl()] = tensors[i];
  }
  std::vector<std::pair<std::string, at::Tensor>> values;
  if (main_only && !engine_->groups.is_main()) return values;
  for (const auto& entry : engine_->module.named_parameters())
    if (auto sharded = whole.find(entry.value().unsafeGetTensorImpl()); sharded != whole.end())
      values.emplace_back(entry.key(), sharded->second);
  for (const auto& entry : engine_->module.named_parameters())  // parameters of ignored modules
    if (!whole.contains(entry.value().unsafeGetTensorImpl())) values.emplace_back(entry.key(), entry.value().detach());
  for (const auto& entry : engine_->module.named_buffers())
    values.emplace_back(entry.key(), entry.value().detach().to(stored_dtype(entry.value())));
  return values;
}

std::vector<TensorShard> ShardedModel::shards() {
  base::Lock lock(engine_->watch.mutex());
  if (engine_->one_copy) engine_->one_copy->require_whole();
  engine_->wait_for_values();
  std::vector<TensorShard> parts;
  for (const auto& entry : engine_->module.named_parameters())
    if (const auto* place = engine_->place(entry.value()))
      parts.push_back(engine_->units[place->first]->shard(place->second, entry.key()));
  return parts;
}

at::ScalarType ShardedModel::stored_dtype(const at::Tensor& tensor) const {
  if (const auto* place = engine_->place(tensor))
    return engine_->units[place->first]->local(place->second).value.scalar_type();
  return engine_->module_buffers.built_dtype(tensor);
}

std::vector<std::string> ShardedModel::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : engine_->units)
    if (std::ranges::find(names, unit->name()) == names.end()) names.push_back(unit->name());
  return names;
}

precision::ForwardCasts ShardedModel::forward_casts() const {
  const auto& settings = engine_->settings;
  return {.inputs = settings.cast_forward_inputs ? settings.param_dtype : std::nullopt,
          .outputs = settings.output_dtype};
}

bool ShardedModel::ranks_are_joined() const {
  base::Lock lock(engine_->watch.mutex());
  return engine_->participants.in_session();
}

void ShardedModel::begin_update() {
  base::Lock lock(engine_->watch.mutex());
  engine_->begin_update();
}

bool ShardedModel::abandon_update(const std::string& cause) {
  base::Lock lock(engine_->watch.mutex());
  return engine_->abandon_update(cause);
}

void ShardedModel::end_update(const std::vector<at::Tensor>& parameters) {
  base::Lock lock(engine_->watch.mutex());
  std::vector<bool> updated(engine_->units.size());
  for (const auto& parameter : parameters)
    if (const auto* place = engine_->place(parameter)) updated[place->first] = true;
  engine_->end_update(updated);
}

void ShardedModel::summon_full_params(const std::function<void()>& f, const FullParamsOptions& options) {
  engine_->with_full_params(f, options);
}

std::string ShardedModel::describe() const { return engine_->describe(); }

void ShardedModel::set_session(JoinSession* session, int64_t model) {
  base::Lock lock(engine_->watch.mutex());
  engine_->participants.set_session(session, model);
  engine_->adopt_divisor();
}

void ShardedModel::follow(const JoinStep& step) {
  base::Lock lock(engine_->watch.mutex());
  engine_->follow(step);
}

std::string ShardedModel::obstacle() const { return need_of_every_batch(engine_->module); }

/// Each rank has made all steps on its shards.
void ShardedModel::sync_final_model(const comm::Communicator& group, int root) {
  base::Lock lock(engine_->watch.mutex());
  engine_->module_buffers.broadcast(group, root);
}

void ShardedModel::end_session() noexcept {
  base::Lock lock(engine_->watch.mutex());
  try {
    engine_->end_session();
  } catch (const std::exception&) {  // the group has failed, and its next operation throws
  }
}

std::string ShardedModel::gradient_states() const {
  base::Lock lock(engine_->watch.mutex());
  return engine_->gradient_states();
}

void ShardedModel::adopt_gradient_states(const std::string& states) {
  base::Lock lock(engine_->watch.mutex());
  engine_->adopt_gradient_states(states);
}

const optim::LocalParameter* ShardedModel::find(const at::Tensor& parameter) const {
  const auto* place = engine_->place(parameter);
  return place ? &engine_->units[place->first]->local(place->second) : nullptr;
}

bool ShardedModel::has_gradient(const at::Tensor& parameter) const {
  const auto* place = engine_->place(parameter);
  if (!place) return false;
  return engine_->units[place->first]->has_gradient(place->second);
}

void ShardedModel::zero_grad(const at::Tensor& parameter, bool set_to_none) {
  if (const auto* place = engine_->place(parameter))
    engine_->units[place->first]->zero_gradient(place->second, set_to_none);
}

ShardedModel::Stats ShardedModel::stats() const { return engine_->stats(); }

}  // namespace muster::parallel
