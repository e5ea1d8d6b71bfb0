#include "muster/parallel/sharded_model.h"

#include "muster/base/error.h"
#include "muster/hook/gradient_hooks.h"
#include "muster/hook/key_fallback.h"
#include "muster/optim/norm.h"
#include "parallel/agreement.h"
#include "parallel/local.h"
#include "parallel/sharded_unit.h"
#include "parallel/units.h"

#include <torch/nn/module.h>

#include <cmath>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace muster::parallel {
namespace {

bool within_backward() { return hook::current_backward() >= 0; }

std::vector<std::string> lines_of(const std::vector<UnitPlan>& plans, const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  for (const auto& plan : plans)
    for (const auto& line : describe_tensors(plan.parameters, {})) lines.push_back(line + ", unit " + plan.name);
  for (const auto& line : describe_tensors({}, buffers)) lines.push_back(line);
  return lines;
}

}  // namespace

/// What hooks and watched storages see. They hold it weakly: it ends with the model.
class ShardedModel::State final : public hook::StorageWatcher, public std::enable_shared_from_this<State> {
 public:
  State(torch::nn::Module& module, dist::Communicator group) : module(module), group(std::move(group)) {}

  void before_touch(const hook::Touch& touch) override;
  void after_touch(int64_t tag) noexcept override;
  void gradient_coming();
  void gradient_arrived(size_t unit, size_t i, const at::Tensor& parameter);

  void begin_backward(bool announced);
  void finish_backward();
  void abandon_backward();
  void release_unused(bool root);
  const std::pair<size_t, size_t>* place(const at::Tensor& parameter) const {
    auto found = places.find(parameter.unsafeGetTensorImpl());
    return found == places.end() ? nullptr : &found->second;
  }

  struct Activity {
    int in_use = 0;
    size_t arrived = 0;     // gradients in this backward
    bool reduced = false;   // in this backward
  };

  mutable std::mutex mutex;
  torch::nn::Module& module;
  dist::Communicator group;
  std::vector<std::unique_ptr<ShardedUnit>> units;
  std::vector<Activity> activity;
  std::unordered_map<const c10::TensorImpl*, std::pair<size_t, size_t>> places;
  std::vector<hook::GradientHook> gradient_hooks;
  std::vector<hook::CaptureHook> capture_hooks;
  std::vector<std::pair<at::Tensor, unsigned>> early_hooks;
  int forward_depth = 0;
  bool in_backward = false;
  bool sync = true;
  Figures figures;

 private:
  [[noreturn]] void refuse(const hook::Touch& touch) const;
  void note_backward();
  void reduce(size_t u);
  std::string name_of(const ShardedUnit& unit, const NamedTensor& parameter) const {
    return "parameter '" + parameter.name + "' of unit '" + unit.name() + "'";
  }

  bool announced_ = false;        // this backward began with before_backward()
  int64_t backward_ = -1;         // otherwise, which one it is
  bool stand_ins_shown_ = false;
};

void ShardedModel::State::refuse(const hook::Touch& touch) const {
  const bool gradient = touch.tag < 0;
  const auto& unit = *units[gradient ? ~touch.tag : touch.tag];
  const auto what = name_of(unit, unit.parameter_of(touch.tensor));
  const auto op = std::string(touch.op);
  if (gradient)
    throw UsageError("MU167", op + " reads the gradient of " + what + ", of which each rank holds only a part: step and clear gradients by the "
                              "prepared optimizer, and clip them by clip_grad_norm_ of the object that prepared it");
  if (touch.writes)
    throw UsageError("MU162", op + " writes " + what + ", which is sharded: the write would be lost: step by the prepared optimizer, and change values before "
                              "the module is prepared");
  throw UsageError("MU161", op + " needs " + what + " outside a forward, where its values are sharded: call the prepared model, or model.run(...) "
                            "for any other function of the module; for the values themselves use save_model");
}

void ShardedModel::State::before_touch(const hook::Touch& touch) {
  std::scoped_lock lock(mutex);
  if (touch.tag < 0 || touch.writes || !(forward_depth > 0 || within_backward())) refuse(touch);
  if (within_backward()) note_backward();
  auto& unit = *units[touch.tag];
  if (!unit.gathered()) {
    if (!unit.is_root()) release_unused(/*root=*/false);
    unit.gather();
    ++figures.gathers;
    figures.gathered_bytes += unit.gathered_bytes();
    figures.peak_gathered_bytes = std::max(figures.peak_gathered_bytes, figures.gathered_bytes);
  }
  ++activity[touch.tag].in_use;
}

void ShardedModel::State::after_touch(int64_t tag) noexcept {
  std::scoped_lock lock(mutex);
  --activity[tag].in_use;
}

void ShardedModel::State::release_unused(bool root) {
  for (size_t u = 0; u < units.size(); ++u) {
    auto& unit = *units[u];
    if (!unit.gathered() || activity[u].in_use > 0 || (unit.is_root() && !root)) continue;
    unit.release();
    figures.gathered_bytes -= unit.gathered_bytes();
  }
}

void ShardedModel::State::reduce(size_t u) {
  activity[u].reduced = true;
  units[u]->reduce();
  ++figures.reductions;
}

/// A backward that was not announced is met at its first touch, or before its first gradient. The same goes for one within another: what the
/// outer one brings after the inner one's end counts as a further backward.
void ShardedModel::State::note_backward() {
  if (in_backward && (announced_ || backward_ == hook::current_backward())) return;
  begin_backward(/*announced=*/false);
  hook::at_end_of_backward([weak = weak_from_this()] {
    auto state = weak.lock();
    if (!state) return;
    std::scoped_lock lock(state->mutex);
    state->finish_backward();
  });
}

void ShardedModel::State::begin_backward(bool announced) {
  for (size_t u = 0; u < units.size(); ++u) {
    if (stand_ins_shown_) units[u]->hide_stand_ins();
    activity[u].arrived = 0;
    activity[u].reduced = false;
  }
  stand_ins_shown_ = false;
  in_backward = true;
  announced_ = announced;
  backward_ = hook::current_backward();
}

void ShardedModel::State::finish_backward() {
  in_backward = false;
  release_unused(/*root=*/true);
  bool any = false;
  for (size_t u = 0; u < units.size(); ++u) any |= activity[u].arrived > 0 || (announced_ && units[u]->waiting());
  for (size_t u = 0; u < units.size() && any && sync; ++u)
    if (units[u]->trainable_count() > 0 && !activity[u].reduced) reduce(u);
  for (auto& unit : units) unit->show_stand_ins();
  stand_ins_shown_ = true;
}

/// Before a gradient is accumulated: the stand-in must be out of its way.
void ShardedModel::State::gradient_coming() {
  std::scoped_lock lock(mutex);
  note_backward();
}

void ShardedModel::State::gradient_arrived(size_t u, size_t i, const at::Tensor& parameter) {
  std::scoped_lock lock(mutex);
  auto& unit = *units[u];
  const auto what = name_of(unit, unit.parameter(i));
  const at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  if (hook::backward_is_recorded())
    throw UsageError("MU153", "backward with create_graph cannot reach " + what + ": its gradient is sharded and has no graph");
  if (gradient.layout() != at::kStrided)
    throw UsageError("MU154", "the gradient of " + what + " is sparse, and sharded training takes dense gradients only: build the module with sparse(false)");
  auto& active = activity[u];
  active.reduced = false;   // if it was true, this is a second pass over the unit: what it adds is summed at the end
  unit.take_gradient(i, gradient);
  if (++active.arrived == unit.trainable_count() && sync) reduce(u);
}

void ShardedModel::State::abandon_backward() {
  if (!in_backward) return;
  in_backward = false;
  for (auto& unit : units) unit->drop_waiting();
}

ShardedModel::ShardedModel(torch::nn::Module& module, dist::Communicator group, ShardedOptions options) {
  if (options.stage != ShardStage::full || !options.reshard_after_forward || options.limit_gathered_mb != 0 || !options.param_dtype.empty() ||
      options.predivide_factor != 0 || !options.reduce_dtype.empty())
    throw ConfigError("MU168", "only fully sharded training with the parameters' own dtypes is there: leave stage, reshard_after_forward, "
                               "limit_gathered_mb, param_dtype, predivide_factor and reduce_dtype as they are");
  hook::install_key_fallback();
  auto plans = plan_units(module, options);
  const auto buffers = distinct_buffers(module);
  require_equal_lines(group, lines_of(plans, buffers));
  state_ = std::make_shared<State>(module, group);
  state_->activity.resize(plans.size());
  for (auto& plan : plans)
    state_->units.push_back(
        std::make_unique<ShardedUnit>(std::move(plan), group, state_, static_cast<int64_t>(state_->units.size())));
  for (size_t u = 0; u < state_->units.size(); ++u)
    for (size_t i = 0; i < state_->units[u]->size(); ++i) {
      const auto& tensor = state_->units[u]->parameter(i).tensor;
      state_->places[tensor.unsafeGetTensorImpl()] = {u, i};
      if (!state_->units[u]->trainable(i)) continue;
      state_->gradient_hooks.emplace_back(tensor, [state = state_.get(), u, i](const at::Tensor& leaf) { state->gradient_arrived(u, i, leaf); });
      state_->early_hooks.emplace_back(tensor, tensor.register_hook([weak = std::weak_ptr(state_)](const at::Tensor&) {
        if (auto state = weak.lock()) state->gradient_coming();
      }));
      state_->capture_hooks.emplace_back(tensor, [name = state_->units[u]->parameter(i).name] {
        throw UsageError("MU153", "autograd::grad with respect to parameter '" + name + "' gives the gradient of one rank's part of the batch: use "
                                  "backward, or differentiate with respect to inputs or activations");
      });
    }
  if (group.size() > 1)
    for (const auto& buffer : buffers) group.broadcast(buffer.tensor);
}

ShardedModel::~ShardedModel() {
  if (!state_) return;
  for (const auto& [tensor, position] : state_->early_hooks) tensor.remove_hook(position);
}

void ShardedModel::enter_forward() {
  std::scoped_lock lock(state_->mutex);
  if (state_->forward_depth == 0 && !within_backward()) {
    for (const auto& unit : state_->units)
      if (const auto name = unit->misplaced(); !name.empty())
        throw UsageError("MU163", "parameter '" + name + "' of unit '" + unit->name() + "' was given other memory (Module::to, set_data) "
                                  "after its module was prepared; move and convert modules before");
    state_->abandon_backward();
    state_->release_unused(/*root=*/true);
  }
  ++state_->forward_depth;
}

void ShardedModel::leave_forward() noexcept {
  std::scoped_lock lock(state_->mutex);
  if (--state_->forward_depth == 0 && !within_backward()) state_->release_unused(/*root=*/true);
}

void ShardedModel::before_backward() {
  std::scoped_lock lock(state_->mutex);
  state_->abandon_backward();
  state_->begin_backward(/*announced=*/true);
}

void ShardedModel::after_backward() {
  std::scoped_lock lock(state_->mutex);
  state_->finish_backward();
}

void ShardedModel::set_gradient_sync(bool on) { state_->sync = on; }
bool ShardedModel::gradient_sync() const { return state_->sync; }

at::Tensor ShardedModel::gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) {
  std::vector<at::Tensor> gradients;
  for_each_gradient(parameters, [&](const at::Tensor& gradient) { gradients.push_back(gradient); });
  auto sum = optim::power_sum(gradients, p);
  if (!state_->units.empty()) sum = sum.to(state_->units.front()->piece(0).value.device());
  const auto op = !std::isinf(p) ? dist::ReduceOp::sum : p > 0 ? dist::ReduceOp::max : dist::ReduceOp::min;
  if (state_->group.size() > 1) state_->group.all_reduce(sum, op);
  return sum;
}

void ShardedModel::for_each_gradient(const std::vector<at::Tensor>& parameters, const std::function<void(const at::Tensor&)>& f) {
  for (const auto& parameter : parameters) {
    const auto* piece = find(parameter);
    if (piece && piece->gradient.numel() > 0 && has_gradient(parameter)) f(piece->gradient);
  }
}

void ShardedModel::scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
  for (const auto& parameter : parameters)
    if (const auto* place = state_->place(parameter)) state_->units[place->first]->scale_gradient(place->second, factor);
}

std::vector<std::pair<std::string, at::Tensor>> ShardedModel::full_state(bool main_only) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> whole;
  for (const auto& unit : state_->units) {
    auto tensors = unit->whole_values(main_only);
    for (size_t i = 0; i < unit->size(); ++i) whole[unit->parameter(i).tensor.unsafeGetTensorImpl()] = tensors[i];
  }
  std::vector<std::pair<std::string, at::Tensor>> values;
  if (main_only && state_->group.rank() != 0) return values;
  for (const auto& entry : state_->module.named_parameters())
    if (auto sharded = whole.find(entry.value().unsafeGetTensorImpl()); sharded != whole.end())
      values.emplace_back(entry.key(), sharded->second);
  for (const auto& entry : state_->module.named_parameters())   // of ignored modules
    if (!whole.contains(entry.value().unsafeGetTensorImpl())) values.emplace_back(entry.key(), entry.value().detach());
  for (const auto& entry : state_->module.named_buffers()) values.emplace_back(entry.key(), entry.value().detach());
  return values;
}

std::vector<ParameterPart> ShardedModel::parts() {
  std::vector<ParameterPart> parts;
  for (const auto& entry : state_->module.named_parameters())
    if (const auto* place = state_->place(entry.value())) parts.push_back(state_->units[place->first]->part(place->second, entry.key()));
  return parts;
}

std::string ShardedModel::describe() const {
  int64_t whole = 0, held = 0;
  for (const auto& unit : state_->units) {
    whole += unit->gathered_bytes();
    held += unit->held_bytes();
  }
  std::ostringstream text;
  text << "fsdp: " << state_->group.size() << " ranks, " << state_->units.size() << " units (";
  for (size_t u = 0; u < state_->units.size(); ++u) text << (u ? ", " : "") << state_->units[u]->name();
  text << "), " << held << " of " << whole << " bytes of parameters on each rank, gathered one unit at a time beside the root";
  return text.str();
}

const optim::FlatPiece* ShardedModel::find(const at::Tensor& parameter) const {
  const auto* place = state_->place(parameter);
  return place ? &state_->units[place->first]->piece(place->second) : nullptr;
}

bool ShardedModel::has_gradient(const at::Tensor& parameter) const {
  const auto* place = state_->place(parameter);
  return place && state_->units[place->first]->counted(place->second);
}

void ShardedModel::zero_grad(const at::Tensor& parameter, bool set_to_none) {
  if (const auto* place = state_->place(parameter)) state_->units[place->first]->zero_gradient(place->second, set_to_none);
}

ShardedModel::Figures ShardedModel::figures() const {
  std::scoped_lock lock(state_->mutex);
  return state_->figures;
}

std::vector<std::string> ShardedModel::unit_names() const {
  std::vector<std::string> names;
  for (const auto& unit : state_->units) names.push_back(unit->name());
  return names;
}

}  // namespace muster::parallel
