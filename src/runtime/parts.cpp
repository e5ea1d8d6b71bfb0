#include "parts.h"

#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/base/log.h"
#include "muster/cluster/variables.h"
#include "muster/device/device.h"
#include "muster/device/host_memory.h"
#include "muster/dist/rendezvous.h"
#include "muster/launcher/devices.h"
#include "muster/launcher/launch.h"
#include "muster/optim/norm.h"
#include "muster/runtime/values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace muster::runtime {
namespace {

/// A wish of the launcher fills what the program left at its default, and must not contradict what it set.
template <class Option, class Name>
void follow_wish(const Environment& environment, const char* variable, Option& option, const Option& fallback, Name name) {
  const auto wish = environment.find(variable);
  if (!wish) return;
  const auto wanted = [&] {
    if constexpr (requires { Option::parse(*wish); }) return Option::parse(*wish);
    else return Option(*wish);
  }();
  const std::string told(name(option)), asked(name(wanted));
  if (told != asked && told != std::string(name(fallback)))
    throw ConfigError("MU171", "the program asks for '" + told + "' and the launcher, by the variable " + variable + ", for '" +
                                   asked + "'; drop one of them");
  if (told != asked) option = wanted;
}

RuntimeOptions resolve(RuntimeOptions options, const Environment& environment) {
  const RuntimeOptions defaults;
  const auto by_name = [](const auto& option) { return option.name(); };
  follow_wish(environment, cluster::kPrecision, options.precision, defaults.precision, by_name);
  follow_wish(environment, cluster::kStrategy, options.strategy, defaults.strategy, by_name);
  follow_wish(environment, cluster::kAccelerator, options.accelerator, defaults.accelerator, [](const std::string& s) { return s; });
  return options;
}

/// The number of ranks on this node that the program asks for; 0: as many as the launcher says.
int processes_wanted(const RuntimeOptions& options) {
  if (!options.devices || options.devices->text() == "auto") return 0;
  return launcher::choose_devices({options.accelerator, options.devices->text(), device::count()}).count;
}

}  // namespace

Parts::Parts(const RuntimeOptions& options)
    : options_(resolve(options, Environment::of_process())), cluster_(read_cluster()), device_(c10::kCPU),
      registry_(std::make_shared<ModelRegistry>()) {
  device_ = device::choose(options_.accelerator, cluster_.device_index >= 0 ? cluster_.device_index : cluster_.local_rank);
  if (options_.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
  const int wanted = processes_wanted(options_);
  if (cluster_.launcher != LauncherKind::none || wanted <= 1) launch();
}

void Parts::launch() {
  if (launched_) return;
  LaunchOptions how;
  how.nodes = options_.devices ? options_.num_nodes : cluster_.nodes;
  how.processes = processes_wanted(options_);
  cluster_ = muster::launch(how);
  device_ = device::choose(options_.accelerator, cluster_.device_index >= 0 ? cluster_.device_index : cluster_.local_rank);
  connect();
  launched_ = true;
}

void Parts::connect() {
  if (cluster_.world_size > 1) log::set_rank(cluster_.rank);
  share_cores();
  if (device_.is_cpu()) device::keep_freed_memory();
  GroupOptions meeting;
  meeting.timeout_seconds = static_cast<double>(options_.timeout_seconds);
  group_ = dist::connect(cluster_, meeting);
  strategy_ = strategy::make_strategy(options_.strategy, cluster_.world_size);
  if (!cluster_.note.empty() && cluster_.is_main()) log::warning(cluster_.note);
}

void Parts::share_cores() {
  if (cluster_.local_world_size == 1) return;
  // LibTorch read the variable when it was loaded, which launch() may have set since.
  const auto told = Environment::of_process().find("OMP_NUM_THREADS");
  // A launcher that does not say how many threads a rank may use would give each of them all cores.
  at::set_num_threads(told ? std::max(1, std::atoi(told->c_str())) : std::max(1, at::get_num_threads() / cluster_.local_world_size));
}

void Parts::require_launched() const {
  if (!launched_)
    throw UsageError("MU172", "the program asks for " + options_.devices->text() +
                                  " devices and has one process so far; call launch() before this");
}

const dist::Communicator& Parts::group() const {
  require_launched();
  return group_;
}

std::shared_ptr<PreparedModel> Parts::prepare_model(std::shared_ptr<torch::nn::Module> module) {
  require_launched();
  if (!module) throw UsageError("MU173", "prepare was given an empty module holder; make the module first");
  if (auto known = registry_->find(*module)) return known;
  const precision::PrecisionPolicy policy(options_.precision);
  policy.convert_module(*module);
  module->to(device_);
  auto managed = strategy_->manage(*module, group_);
  auto model = std::make_shared<PreparedModel>(PreparedModel{module, std::move(managed), policy, device_.type()});
  registry_->add(model);
  notes_.push_back("model " + module->name() + ": " + model->managed->describe());
  return model;
}

Optimizer Parts::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  require_launched();
  for (const auto& entry : optimizers_)
    if (auto known = entry.lock(); known && known->owner() == optimizer) return Optimizer(known);
  auto prepared = std::make_shared<PreparedOptimizer>(std::move(optimizer), registry_, group_);
  optimizers_.push_back(prepared);
  return Optimizer(std::move(prepared));
}

namespace {

/// LibTorch tells nobody which optimizer a scheduler steps, but shows its heirs the optimizer's rates.
struct SchedulerRates : torch::optim::LRScheduler {
  static std::vector<double> of(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&SchedulerRates::get_current_lrs))();
  }
};

/// Whether a change of the optimizer's rate is seen by the scheduler.
bool steps(const torch::optim::LRScheduler& scheduler, torch::optim::Optimizer& optimizer) {
  auto& options = optimizer.param_groups().at(0).options();
  const double before = options.get_lr();
  options.set_lr(before + 1);
  const auto seen = SchedulerRates::of(scheduler);
  options.set_lr(before);
  return !seen.empty() && seen[0] == before + 1;
}

}  // namespace

Scheduler Parts::prepare_scheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler) {
  require_launched();
  const bool known = std::any_of(optimizers_.begin(), optimizers_.end(), [&](const auto& entry) {
    const auto prepared = entry.lock();
    return prepared && steps(*scheduler, prepared->inner());
  });
  if (!known)
    throw UsageError("MU174", "a scheduler was prepared whose optimizer is not; name the optimizer (a temporary has moved away "
                              "from under its scheduler) and prepare both");
  return Scheduler([scheduler] { scheduler->step(); }, nullptr);
}

Scheduler Parts::prepare_scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler) {
  require_launched();
  return Scheduler(nullptr, [scheduler, group = group_](double metric) {
    const auto mean = at::scalar_tensor(metric, at::kDouble);
    group.all_reduce(mean, dist::ReduceOp::mean);
    scheduler->step(static_cast<float>(mean.item<double>()));
  });
}

data::ShardSpec Parts::prepare_loader(const DataLoaderOptions& options) {
  require_launched();
  uint64_t seed = options.seed.value_or(seed_.value_or(at::detail::getDefaultCPUGenerator().current_seed()));
  if (!options.seed) seed = broadcast(group_, seed, 0);
  return {.device = device_,
          .even_batches = options.even_batches && options_.even_batches,
          .rank = cluster_.rank,
          .seed = seed,
          .split_batches = options.split_batches || options_.split_batches,
          .world_size = cluster_.world_size};
}

void Parts::backward(const at::Tensor& loss, bool retain_graph) {
  require_launched();
  const auto models = registry_->models();
  for_each_optimizer([](optim::FusedOptimizer& optimizer) { optimizer.refuse_own_step(); });
  for (const auto& model : models) model->managed->before_backward();
  loss.backward({}, retain_graph);
  for (const auto& model : models) model->managed->after_backward();
  for_each_optimizer([](optim::FusedOptimizer& optimizer) { optimizer.note_backward(); });
}

namespace {

/// Calls f(model or nullptr, its parameters) for the parameters of each model, and for those that no model holds.
template <class F>
void by_model(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, F&& f) {
  auto rest = parameters;
  for (const auto& model : registry.models()) {
    const auto held = std::stable_partition(rest.begin(), rest.end(), [&](const at::Tensor& p) { return !model->managed->find(p); });
    if (held != rest.end()) f(model->managed.get(), std::vector<at::Tensor>(held, rest.end()));
    rest.erase(held, rest.end());
  }
  if (!rest.empty()) f(nullptr, rest);
}

at::Tensor power_sum(parallel::ManagedModel* model, const std::vector<at::Tensor>& parameters, double p) {
  if (model) return model->gradient_power_sum(parameters, p);
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return optim::power_sum(gradients, p);
}

void each_gradient(parallel::ManagedModel* model, const std::vector<at::Tensor>& parameters,
                   const std::function<void(const at::Tensor&)>& f) {
  if (model) return model->for_each_gradient(parameters, f);
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) f(parameter.grad());
}

}  // namespace

double Parts::clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double p, bool error_if_nonfinite) {
  require_launched();
  double total = 0;
  by_model(*registry_, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    const auto sum = power_sum(model, part, p).item<double>();
    total = std::isinf(p) && !std::isnan(sum) ? std::max(total, sum) : total + sum;
  });
  const double norm = optim::norm_from_power_sum(total, p);
  if (error_if_nonfinite && !std::isfinite(norm))
    throw UsageError("MU175", formatted("the gradients' norm of order {} is {}; skip this step, lower the learning rate, or clip "
                                     "with error_if_nonfinite off", p, norm));
  torch::NoGradGuard no_grad;
  const double factor = optim::clip_coefficient(norm, max_norm);
  by_model(*registry_, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    each_gradient(model, part, [&](const at::Tensor& gradient) { gradient.mul_(factor); });
  });
  return norm;
}

void Parts::clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  require_launched();
  torch::NoGradGuard no_grad;
  by_model(*registry_, parameters, [&](parallel::ManagedModel* model, const std::vector<at::Tensor>& part) {
    each_gradient(model, part, [&](const at::Tensor& gradient) { gradient.clamp_(-clip_value, clip_value); });
  });
}

void Parts::set_seed(uint64_t seed, bool per_rank) {
  seed_ = seed;
  torch::manual_seed(seed + (per_rank ? static_cast<uint64_t>(cluster_.rank) : 0));
}

void Parts::for_each_optimizer(const std::function<void(optim::FusedOptimizer&)>& f) const {
  for (const auto& entry : optimizers_)
    if (const auto optimizer = entry.lock()) f(optimizer->fused());
}

std::string Parts::plan() const {
  std::string text = formatted("ranks: {} on {} node(s), this is rank {}; told by {}\n", cluster_.world_size, cluster_.nodes,
                            cluster_.rank, to_string(cluster_.launcher));
  text += formatted("device: {}; backend: {}\n", device_.str(), group_.backend());
  text += formatted("precision: {}\n", options_.precision.name());
  if (strategy_) text += formatted("strategy: {} ({})\n", strategy_->name(), strategy_->reason());
  text += formatted("threads: {} a rank\n", at::get_num_threads());
  for (const auto& note : notes_) text += note + "\n";
  return text;
}

std::shared_ptr<PreparedModel> prepare_model(Parts& parts, std::shared_ptr<torch::nn::Module> module) {
  return parts.prepare_model(std::move(module));
}
Optimizer prepare_optimizer(Parts& parts, std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return parts.prepare_optimizer(std::move(optimizer));
}
Scheduler prepare_scheduler(Parts& parts, std::shared_ptr<torch::optim::LRScheduler> scheduler) {
  return parts.prepare_scheduler(std::move(scheduler));
}
Scheduler prepare_scheduler(Parts& parts, std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler) {
  return parts.prepare_scheduler(std::move(scheduler));
}
data::ShardSpec prepare_loader(Parts& parts, const DataLoaderOptions& options) { return parts.prepare_loader(options); }

}  // namespace muster::runtime
