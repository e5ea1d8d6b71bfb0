#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/evaluation_scope.h"
#include "muster/runtime/flops.h"
#include "muster/runtime/loop_access.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

// Why: docs/decisions/0102-what-the-trainer-shows.md.
namespace muster {
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
    if (&line == &lines.front()) text += std::string(row.size(), '-') + "\n";
    if (&line == &lines.back()) text += std::string(row.size(), '-') + "\n";
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

namespace {

int64_t flops_of(Trainer& trainer, TrainerModule& module, const std::function<void(TrainerModule&)>& example) {
  const KeptRandomStates kept(trainer.runtime());
  const auto scope = evaluation(trainer.model());
  return measure_flops([&] { runtime::in_forward_scope(*trainer.model().prepared(), [&] { example(module); }); });
}

}  // namespace

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

}  // namespace muster
