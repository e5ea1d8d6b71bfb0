#include <charconv>
#include <unordered_set>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/evaluation_scope.h"
#include "muster/runtime/flops.h"
#include "muster/runtime/loop_access.h"
#include "muster/track/progress.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"
#include "options/trainer_fields.h"

// Why: docs/decisions/0102-what-the-trainer-shows.md.
namespace muster {
namespace {

/// Number of batches of all loaders; -1 if unknown.
int64_t total_of(const Trainer& trainer, Stage stage) {
  int64_t total = 0;
  for (const auto& batches : trainer.num_batches(stage)) {
    if (!batches) return -1;
    total += *batches;
  }
  return total;
}

int64_t flops_of(Trainer& trainer, TrainerModule& module, const std::function<void(TrainerModule&)>& example) {
  const KeptRandomStates kept(trainer.runtime());
  const auto scope = evaluation(trainer.model());
  return measure_flops([&] { runtime::in_forward_scope(*trainer.model().prepared(), [&] { example(module); }); });
}

}  // namespace

TrainerProgressBar::TrainerProgressBar(TrainerProgressBarOptions options) : options_(std::move(options)) {
  trainer::Problems problems;
  problems.least("refresh_rate", options_.refresh_rate, 0);
  trainer::raise_for("TrainerProgressBar", problems);
  options_.shown.unit = "batches";
}

Metrics TrainerProgressBar::get_metrics(const Trainer& trainer) const {
  auto metrics = trainer.progress_bar_metrics();
  const auto version = trainer.log_dir().filename().string();
  const auto digits = version.find_first_of("0123456789");
  int64_t number = 0;
  if (version.starts_with("version_") && digits != version.npos &&
      std::from_chars(version.data() + digits, version.data() + version.size(), number).ec == std::errc())
    metrics["v_num"] = static_cast<double>(number);
  return metrics;
}

void TrainerProgressBar::begin(Bar& bar, const Trainer& trainer, const std::string& title, Stage stage) const {
  bar = {};
  if (shows()) bar.shown = std::make_shared<Progress>(title, total_of(trainer, stage), options_.shown);
}

void TrainerProgressBar::advance(Bar& bar, const Trainer& trainer) const {
  if (!bar.shown || ++bar.waiting < options_.refresh_rate) return;
  if (bar.shown->shows_after(bar.waiting)) set_metrics(bar, trainer);
  bar.shown->advance(std::exchange(bar.waiting, 0));
}

void TrainerProgressBar::end(Bar& bar, const Trainer& trainer) const {
  if (!bar.shown) return;
  set_metrics(bar, trainer);
  bar.shown->advance(bar.waiting);
  bar = {};
}

void TrainerProgressBar::set_metrics(Bar& bar, const Trainer& trainer) const {
  for (const auto& [name, value] : get_metrics(trainer)) bar.shown->set(name, value);
}

void TrainerProgressBar::setup(Trainer& trainer, TrainerModule&, Stage) { main_ = trainer.runtime().is_main(); }

// A resumed epoch starts with a later batch.
void TrainerProgressBar::on_train_batch_start(Trainer& trainer, TrainerModule&, const BatchView&, BatchPlace place) {
  if (training_.shown || !shows()) return;
  begin(training_, trainer, "Epoch " + std::to_string(trainer.current_epoch()), Stage::fit);
  training_.shown->skip(place.batch_idx);
}

void TrainerProgressBar::on_validation_start(Trainer& trainer, TrainerModule&) {
  begin(evaluation_, trainer, trainer.sanity_checking() ? "Sanity check" : "Validation", Stage::validate);
}

namespace {

void check_depth(int max_depth) {
  if (max_depth < -1)
    throw ConfigError("MU451", formatted("max_depth of a model's summary is {}; give at least -1", max_depth));
}

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  auto all = module.parameters();
  std::erase_if(all, [&](const at::Tensor& one) { return !seen.insert(one.unsafeGetTensorImpl()).second; });
  return all;
}

int64_t count_in(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : distinct_parameters(module)) count += parameter.numel();
  return count;
}

/// The class name without namespace and Impl: "Linear" for "torch::nn::LinearImpl".
std::string type_of(const torch::nn::Module& module) {
  auto name = module.name();
  if (const auto arguments = name.find('<'); arguments != name.npos) name.resize(arguments);
  if (const auto colon = name.rfind("::"); colon != name.npos) name.erase(0, colon + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

void add_parts(ModuleSummary& summary, const torch::nn::Module& module, const std::string& path, int depth) {
  if (depth == 0) return;
  for (const auto& part : module.named_children()) {
    const auto name = path.empty() ? part.key() : path + "." + part.key();
    summary.rows.push_back({name, type_of(*part.value()), count_in(*part.value()), part.value()->is_training()});
    add_parts(summary, *part.value(), name, depth - 1);
  }
}

/// A count in Lightning's format: 123, 1.2 K, 12.3 M.
std::string shown(int64_t count) {
  constexpr std::array kUnits = {"", "K", "M", "B", "T"};
  auto number = static_cast<double>(count);
  std::size_t unit = 0;
  for (; number >= 1000 && unit + 1 < kUnits.size(); ++unit) number /= 1000;
  if (unit == 0) return std::to_string(count);
  return number >= 100 ? formatted("{} {}", static_cast<int64_t>(number), kUnits[unit])
                       : formatted("{:.1f} {}", number, kUnits[unit]);
}

using Cells = std::array<std::string, 5>;

std::string table_of(const std::vector<Cells>& lines) {
  std::array<std::size_t, 5> widths = {};
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i)
      row += (i == 0 ? "" : " | ") + line[i] + std::string(widths[i] - line[i].size(), ' ');
    text += row + "\n";
    if (&line == &lines.front() || &line == &lines.back()) text += std::string(row.size(), '-') + "\n";
  }
  return text;
}

}  // namespace

ModuleSummary summarize(const torch::nn::Module& module, int max_depth) {
  check_depth(max_depth);
  ModuleSummary summary;
  std::unordered_set<const void*> in_parts;
  for (const auto& part : module.children())
    for (const auto& parameter : part->parameters()) in_parts.insert(parameter.unsafeGetTensorImpl());
  for (const auto& parameter : distinct_parameters(module)) {
    const auto count = parameter.numel();
    (parameter.requires_grad() ? summary.trainable : summary.frozen) += count;
    summary.bytes += count * static_cast<int64_t>(parameter.element_size());
    if (!in_parts.contains(parameter.unsafeGetTensorImpl())) summary.other_parameters += count;
  }
  for (const auto& part : module.modules(/*include_self=*/false))
    ++(part->is_training() ? summary.modules_in_train : summary.modules_in_eval);
  add_parts(summary, module, {}, max_depth);
  return summary;
}

std::string ModuleSummary::text() const {
  std::vector<Cells> lines = {{"", "Name", "Type", "Params", "Mode"}};
  for (const auto& row : rows)
    lines.push_back(
        {std::to_string(lines.size() - 1), row.name, row.type, shown(row.parameters), row.training ? "train" : "eval"});
  if (other_parameters > 0 && !rows.empty())
    lines.push_back({"", "other params", "n/a", shown(other_parameters), "n/a"});
  auto text = lines.size() > 1 ? table_of(lines) : std::string();
  const auto line = [&](const std::string& value, const char* name) { text += formatted("{:<10}{}\n", value, name); };
  line(shown(trainable), "Trainable params");
  line(shown(frozen), "Non-trainable params");
  line(shown(total()), "Total params");
  line(formatted("{:.3f}", static_cast<double>(bytes) * 1e-6), "Total estimated model params size (MB)");
  line(std::to_string(modules_in_train), "Modules in train mode");
  line(std::to_string(modules_in_eval), "Modules in eval mode");
  if (flops > 0) line(shown(flops), "Total FLOPs");
  return text;
}

ModelSummary::ModelSummary(ModelSummaryOptions options) : options_(std::move(options)) {
  check_depth(options_.max_depth);
}

void ModelSummary::on_fit_start(Trainer& trainer, TrainerModule& module) {
  if (options_.max_depth == 0) return;
  auto summary = summarize(module, options_.max_depth);
  if (options_.example) summary.flops = flops_of(trainer, module, options_.example);
  if (!trainer.runtime().is_main()) return;
  const auto text = summary.text();
  std::fputs(text.c_str(), options_.stream);
  std::fflush(options_.stream);
}

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

void PredictionWriter::on_predict_epoch_start(Trainer& trainer, TrainerModule&) {
  const auto loaders = trainer.num_batches(Stage::predict).size();
  predictions_.assign(loaders, {});
  indices_.assign(loaders, {});
}

void PredictionWriter::on_predict_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output,
                                            const BatchView& batch, BatchPlace place) {
  auto indices = trainer.batch_indices();
  if (interval_ != WriteInterval("epoch")) write_on_batch_end(trainer, module, output, indices, batch, place);
  if (interval_ == WriteInterval("batch")) return;
  const auto loader = static_cast<std::size_t>(place.dataloader_idx);
  predictions_.at(loader).push_back(output);
  indices_.at(loader).push_back(std::move(indices));
}

void PredictionWriter::on_predict_epoch_end(Trainer& trainer, TrainerModule& module) {
  if (interval_ != WriteInterval("batch")) write_on_epoch_end(trainer, module, predictions_, indices_);
  predictions_.clear();
  indices_.clear();
}

}  // namespace muster
