#include "graph/blocks.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/core/dispatch/Dispatcher.h>

#include "base/log.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::graph {
namespace {

using torch::nn::Module;

tree::NamedModules selected(const Module& root, const RecomputeOptions& options, const tree::NamedModules& automatic) {
  const auto places = tree::submodules_of(root);
  tree::NamedModules chosen;
  const auto add = [&](const tree::Submodule& place) { chosen.emplace(place.module.get(), place.name); };
  for (const auto& name : options.blocks) {
    if (name == "auto") chosen.insert(automatic.begin(), automatic.end());
    else if (tree::is_named(places, name)) tree::each_named(root, places, "recompute.blocks", name, add);
    else tree::each_of_class(root, places, "recompute.blocks", name, add);
  }
  for (const auto& type : options.types) tree::each_of_type(root, places, "recompute.types", type, add);
  return chosen;
}

/// Divides parameters among blocks. A parameter belongs to the innermost block around its first occurrence.
struct Division {
  const tree::NamedModules& chosen;
  std::vector<Block> blocks;  // in the module's order
  std::vector<at::Tensor> others;
  std::set<const Module*> visited;
  std::set<const c10::TensorImpl*> seen;

  void visit(const Module& module, size_t block) {
    if (const auto found = chosen.find(&module); found != chosen.end()) {
      if (!visited.insert(&module).second) return;  // a module that occurs twice
      block = blocks.size();
      blocks.push_back({found->second, {}});
    }
    for (const auto& parameter : module.parameters(/*recurse=*/false))
      if (parameter.defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
        (block == kNone ? others : blocks[block].parameters).push_back(parameter);
    for (const auto& child : module.children()) visit(*child, block);
  }
  static constexpr auto kNone = static_cast<size_t>(-1);
};

/// The operators that a word of `keep` means.
std::vector<std::string> operators_of(const std::string& word) {
  static const std::map<std::string, std::vector<std::string>> groups{
      {"matmul",
       {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot",
        "aten::_addmm_activation", "aten::mkldnn_linear", "aten::_int_mm"}},
      {"attention",
       {"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable", "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward"}},
      {"convolution",
       {"aten::convolution", "aten::convolution_overrideable", "aten::mkldnn_convolution", "aten::cudnn_convolution",
        "aten::cudnn_convolution_transpose", "aten::miopen_convolution", "aten::_slow_conv2d_forward"}}};
  if (const auto group = groups.find(word); group != groups.end()) return group->second;
  std::vector<std::string> known;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name == word || name.name == "aten::" + word) return {name.name};
    known.push_back(name.name);
  }
  const auto near = nearest_name(word, known);
  throw ConfigError("MU589",
                    "recompute.keep names the operator '" + word + "', which does not exist" +
                        (near.empty() ? "" : "; nearest is '" + near + "'") +
                        "; give an operator's name as \"aten::gelu\", or one of matmul, attention, convolution");
}

}  // namespace

Blocks::Blocks(const Module& root, const RecomputeOptions& options, const tree::NamedModules& automatic, bool warns)
    : check_(options.check), budget_(static_cast<int64_t>(options.budget_mib * (1 << 20))) {
  if (!(options.budget_mib >= 0) || options.budget_mib > 1e12)
    throw ConfigError("MU589", formatted("recompute.budget_mib is {}: give the MiB that activations of blocks may "
                                         "take, or 0 to make all of them again",
                                         options.budget_mib));
  if (options.every < 1)
    throw ConfigError("MU589", "recompute.every is " + std::to_string(options.every) +
                                   ": give 1 for every block, or a larger number for every n-th");
  for (const auto& word : options.keep)
    for (const auto& op : operators_of(word)) kept_.insert(op);
  const auto chosen = selected(root, options, automatic);
  Division division{chosen, {}, {}, {}, {}};
  division.visit(root, Division::kNone);
  others_ = std::move(division.others);
  std::set<std::string> empty;
  size_t number = 0;
  for (auto& block : division.blocks) {
    if (block.parameters.empty()) {
      empty.insert(block.name);
    } else if (number++ % static_cast<size_t>(options.every) == 0) {
      blocks_.push_back(std::move(block));
    } else {
      others_.insert(others_.end(), block.parameters.begin(), block.parameters.end());
    }
  }
  seen_ = std::make_unique<std::atomic<bool>[]>(blocks_.size());
  kept_blocks_.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) costs_.push_back(std::make_shared<MeasuredCost>());
  if (warns && !empty.empty())
    log::warning("recompute: a block begins where its parameters are first used, and these have none of their own: ",
                 listed(empty), "; name the module around them instead");
}

int64_t Blocks::bytes_after_forward(size_t block) const {
  const auto cost = this->cost(block);
  return cost.kept_bytes - (is_recomputed(block) ? cost.returned_bytes : 0);
}

bool Blocks::awaits_choice() const {
  return !has_choice() && std::ranges::any_of(costs_, [](const auto& cost) { return cost->get().seconds > 0; });
}

void Blocks::choose(const std::vector<BlockCost>& costs) {
  kept_blocks_ = cheapest_blocks(costs, budget_);
  kept_blocks_.flip();
  chosen_ = true;
  int64_t bytes = 0;
  for (size_t i = 0; i < costs.size(); ++i)
    bytes += costs[i].kept_bytes - (kept_blocks_[i] ? 0 : costs[i].returned_bytes);
  if (bytes > budget_)
    log::warning("recompute: what goes into blocks takes ", size_text(static_cast<uint64_t>(bytes)),
                 " and is kept, which is more than recompute.budget_mib allows (",
                 size_text(static_cast<uint64_t>(budget_)), "); all blocks are made again");
}

std::vector<std::string> Blocks::describe() const {
  const auto again = static_cast<int64_t>(std::ranges::count(kept_blocks_, false));
  auto first = "recompute: " + counted(again, "block");
  if (again < static_cast<int64_t>(blocks_.size())) first += " of " + std::to_string(blocks_.size());
  if (!blocks_.empty())
    first += " (" + blocks_.front().name + (blocks_.size() > 1 ? " to " + blocks_.back().name : "") + ")";
  if (budget_ > 0) first += ", within " + size_text(static_cast<uint64_t>(budget_));
  if (!has_choice()) first += " from the second step on";
  std::vector<std::string> lines{first};
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (const auto cost = this->cost(i); is_seen(i))
      lines.push_back(formatted("  {}: {} of {} made again, by {:.3g} GFLOP in {:.3g} ms{}", blocks_[i].name,
                                size_text(static_cast<uint64_t>(std::max<int64_t>(cost.returned_bytes, 0))),
                                size_text(static_cast<uint64_t>(cost.kept_bytes)),
                                static_cast<double>(cost.flops) / 1e9, cost.seconds * 1e3,
                                kept_blocks_[i] ? "; kept, within the budget" : ""));
  return lines;
}

}  // namespace muster::graph
