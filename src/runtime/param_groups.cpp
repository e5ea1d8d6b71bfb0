#include "param_groups.h"

#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include <torch/optim/lbfgs.h>

#include "base/text.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/optimizer_state.h"

namespace muster::runtime {
namespace {

std::string name_of(const ModelRegistry& registry, const at::Tensor& parameter) {
  for (const auto& model : registry.models())
    for (const auto& entry : model->module->named_parameters())
      if (entry.value().is_same(parameter)) return "'" + entry.key() + "'";
  std::ostringstream text;
  text << "a tensor of shape " << parameter.sizes();
  return text.str();
}

/// Parameters of prepared models that are in no group.
std::vector<at::Tensor> outside(torch::optim::Optimizer& optimizer, const ModelRegistry& registry) {
  std::unordered_set<c10::TensorImpl*> inside;  // the identity of a tensor
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) inside.insert(parameter.unsafeGetTensorImpl());
  std::vector<at::Tensor> rest;
  for (const auto& model : registry.models())
    for (const auto& parameter : model->module->parameters())
      if (inside.insert(parameter.unsafeGetTensorImpl()).second) rest.push_back(parameter);
  return rest;
}

std::string shown(const State& option) {
  switch (option.kind()) {
    case State::Kind::boolean: return option.boolean() ? "true" : "false";
    case State::Kind::integer: return std::to_string(option.integer());
    case State::Kind::number: return formatted("{}", option.number());
    case State::Kind::text: return option.text();
    case State::Kind::list: {
      std::string all;
      for (const auto& one : option.list()) all += (all.empty() ? "(" : ", ") + shown(one);
      return all + ")";
    }
    default: return "none";
  }
}

[[noreturn]] void refuse_saved(const std::string& what, const std::string& remedy) {
  throw CheckpointError(
      "MU331", "the parameter groups of the optimizer are not those of the checkpoint: " + what + "; " + remedy);
}

}  // namespace

std::string describe_parameters(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters) {
  const std::string text = counted(parameters.size(), "parameter");
  if (parameters.empty()) return text;
  return text + " (" + first_names(parameters, [&](const at::Tensor& one) { return name_of(registry, one); }) + ")";
}

std::string all_parameters(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (size_t m = 0; const auto& model : registry.models()) {
    for (const auto& entry : model->module->named_parameters())
      names.emplace(entry.value().unsafeGetTensorImpl(), std::to_string(m) + "." + entry.key());
    ++m;
  }
  std::ostringstream text;
  for (const auto& parameter : parameters)
    text << names[parameter.unsafeGetTensorImpl()] << ' ' << parameter.sizes() << '\n';
  return text.str();
}

void require_addable(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                     const ModelRegistry& registry) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer))
    throw UsageError("MU332",
                     "add_param_group was called on LBFGS, which takes one parameter group: make another optimizer for "
                     "the parameters, or an LBFGS of all of them");
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& parameter : group.params()) {
    if (!parameter.defined() || !parameter.is_leaf())
      throw UsageError("MU332", std::string("add_param_group was given ") +
                                    (parameter.defined() ? "the result of a computation" : "an undefined tensor") +
                                    ": give it parameters of a prepared model");
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
      throw UsageError(
          "MU332", "add_param_group was given the parameter " + name_of(registry, parameter) + " twice: leave one out");
  }
  for (const auto& own : optimizer.param_groups()) {
    for (const auto& parameter : group.params())
      if (std::any_of(own.params().begin(), own.params().end(),
                      [&](const at::Tensor& one) { return one.is_same(parameter); }))
        throw UsageError("MU332", "add_param_group was given the parameter " + name_of(registry, parameter) +
                                      ", which is in a group of the optimizer already: leave it out, or change the "
                                      "options of that group in param_groups()");
    if (!group.has_options()) continue;
    const auto &owned = own.options(), &given = group.options();
    if (typeid(owned) != typeid(given))
      throw UsageError("MU333",
                       "add_param_group was given options of another class than the optimizer's: give a group of AdamW "
                       "an AdamWOptions, one of SGD an SGDOptions, and so on, or none for the optimizer's defaults");
  }
}

void require_equal_groups(const comm::Communicator& group, const std::string& all, const std::string& shown) {
  if (group.size() == 1) return;
  const auto texts = group.internal("the parameter groups that ranks add").all_gather_bytes(shown + '\0' + all);
  const auto found = comm::first_difference(texts);
  if (!found) return;
  const auto first = found->first.substr(0, found->first.find('\0')),
             other = found->other.substr(0, found->other.find('\0'));
  throw ConfigError("MU150", formatted("ranks add different parameter groups: rank 0 adds {}, rank {} adds {}{}; call "
                                       "add_param_group with the same parameters and options on every rank",
                                       first, found->rank, other,
                                       first == other ? ", with other options or other parameters further on" : ""));
}

void require_equal_options(const comm::Communicator& group, torch::optim::Optimizer& optimizer) {
  if (group.size() == 1) return;
  std::vector<std::string> lines{counted(optimizer.param_groups().size(), "parameter group")};
  for (size_t g = 0; auto& one : optimizer.param_groups()) {
    lines.push_back(formatted("group {} of {}", g, counted(one.params().size(), "parameter")));
    const auto options = muster::options_of(one);
    if (!options.empty())
      for (const auto& [name, value] : options.map())
        lines.push_back(formatted("group {} with {} = {}", g, name, shown(value)));
    ++g;
  }
  comm::require_same_lines(group, lines,
                           {.remedy = "prepare the optimizer with the same parameters and options on every rank",
                            .what = "ranks have prepared an optimizer with different options"});
}

void require_saved_groups(const State& saved, torch::optim::Optimizer& optimizer, const ModelRegistry& registry) {
  if (!saved.find("param_groups")) return;
  const auto& theirs = saved.at("param_groups").list();
  const auto& ours = optimizer.param_groups();
  for (size_t g = 0; g < std::max(theirs.size(), ours.size()); ++g) {
    if (g >= theirs.size())
      refuse_saved(formatted("the checkpoint lacks group {}, which has {} here", g,
                             describe_parameters(registry, ours[g].params())),
                   "load a checkpoint that was saved with it, or call add_param_group after load_state");
    const auto count = theirs[g].at("params").list().size();
    if (g >= ours.size())
      refuse_saved(formatted("the optimizer lacks group {}, which was saved with {}; in no group here are {}", g,
                             counted(count, "parameter"), describe_parameters(registry, outside(optimizer, registry))),
                   "call add_param_group with the parameters of that group before load_state");
    if (count != ours[g].params().size())
      refuse_saved(formatted("group {} was saved with {} and has {} here", g, counted(count, "parameter"),
                             describe_parameters(registry, ours[g].params())),
                   "build the groups as when it was saved");
  }
}

}  // namespace muster::runtime
