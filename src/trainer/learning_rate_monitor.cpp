#include <map>
#include <optional>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

namespace muster {
namespace {

namespace lib = torch::optim;

/// The optimizer's type without namespaces, such as "SGD".
std::string type_of(const lib::Optimizer& optimizer) {
  const auto name = c10::demangle(typeid(optimizer).name());
  const auto colon = name.rfind("::");
  return colon == name.npos ? name : name.substr(colon + 2);
}

std::optional<double> momentum_of(lib::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<lib::SGDOptions*>(&options)) return sgd->momentum();
  if (auto* rmsprop = dynamic_cast<lib::RMSpropOptions*>(&options)) return rmsprop->momentum();
  if (auto* adam = dynamic_cast<lib::AdamOptions*>(&options)) return std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<lib::AdamWOptions*>(&options)) return std::get<0>(adamw->betas());
  return std::nullopt;
}

std::optional<double> weight_decay_of(lib::OptimizerOptions& options) {
  const auto found = [](auto* own) { return own ? std::optional<double>(own->weight_decay()) : std::nullopt; };
  for (const auto& value :
       {found(dynamic_cast<lib::SGDOptions*>(&options)), found(dynamic_cast<lib::RMSpropOptions*>(&options)),
        found(dynamic_cast<lib::AdamOptions*>(&options)), found(dynamic_cast<lib::AdamWOptions*>(&options)),
        found(dynamic_cast<lib::AdagradOptions*>(&options))})
    if (value) return value;
  return std::nullopt;
}

void add(Metrics& values, lib::Optimizer& optimizer, const std::string& name,
         const LearningRateMonitorOptions& options) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto group = groups.size() > 1 ? "/pg" + std::to_string(i + 1) : std::string();
    auto& own = groups[i].options();
    values[options.log_key_prefix + name + group] = own.get_lr();
    const auto momentum = options.log_momentum ? momentum_of(own) : std::nullopt;
    if (momentum) values[options.log_key_prefix + name + "-momentum" + group] = *momentum;
    const auto decay = options.log_weight_decay ? weight_decay_of(own) : std::nullopt;
    if (decay) values[options.log_key_prefix + name + "-weight_decay" + group] = *decay;
  }
}

/// The name of each optimizer, and the interval of its first scheduler.
struct Watched {
  std::shared_ptr<lib::Optimizer> optimizer;
  std::string name;
  std::optional<ScheduleInterval> interval;
};

std::vector<Watched> watched(const Trainer& trainer) {
  std::vector<Watched> all;
  std::map<std::string, int> seen;
  for (const auto& [optimizer, schedulers] : trainer.configured_optimizers()) {
    const auto type = type_of(*optimizer);
    const auto before = seen[type]++;
    auto name = "lr-" + type + (before > 0 ? "-" + std::to_string(before) : "");
    std::optional<ScheduleInterval> interval;
    for (const auto& schedule : schedulers) {
      if (!schedule.name.empty()) name = schedule.name;
      if (!interval) interval = schedule.interval;
    }
    all.push_back({optimizer, std::move(name), interval});
  }
  return all;
}

}  // namespace

LearningRateMonitor::LearningRateMonitor(LearningRateMonitorOptions options) : options_(std::move(options)) {}

void LearningRateMonitor::on_train_start(Trainer& trainer, TrainerModule&) {
  if (trainer.log_dir().empty() && trainer.options().fast_dev_run == 0)
    throw UsageError("MU433",
                     "LearningRateMonitor writes to the Trainer's logger, and there is none: give the Trainer one, as "
                     "{.logger = {.log_with = {\"csv\"}}}, or leave the callback out");
  if (watched(trainer).empty() && trainer.runtime().is_main())
    log::warning("LearningRateMonitor has nothing to log: configure_optimizers() returned no optimizer");
}

void LearningRateMonitor::log(Trainer& trainer, ScheduleInterval interval) const {
  Metrics values;
  for (const auto& one : watched(trainer))
    if (options_.logging_interval != LoggingInterval("schedule") || one.interval.value_or(interval) == interval)
      add(values, *one.optimizer, one.name, options_);
  if (!values.empty()) trainer.log_metrics(values);
}

void LearningRateMonitor::on_train_batch_start(Trainer& trainer, TrainerModule&, const BatchView&, BatchPlace) {
  if (options_.logging_interval != LoggingInterval("epoch") && trainer.logs_this_step()) log(trainer, "step");
}

void LearningRateMonitor::on_train_epoch_start(Trainer& trainer, TrainerModule&) {
  if (options_.logging_interval != LoggingInterval("step")) log(trainer, "epoch");
}

}  // namespace muster
