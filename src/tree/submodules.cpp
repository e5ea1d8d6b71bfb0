#include "tree/submodules.h"

#include <regex>
#include <set>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::tree {
namespace {

using torch::nn::Module;
using Meant = std::function<bool(const Submodule&)>;

void collect(const Module& module, const std::string& prefix, std::vector<Submodule>& places) {
  for (const auto& child : module.named_children()) {
    const auto name = qualified(prefix, child.key());
    places.push_back({name, child.value()});
    collect(*child.value(), name, places);
  }
}

std::string bare_class(const Module& module) {
  const auto& name = module.name();
  const auto scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

bool has_class(const Module& module, const std::string& wanted) {
  const auto name = bare_class(module);
  return name == wanted || name == wanted + "Impl";
}

Meant meant_by(const std::vector<Submodule>& places, const std::string& name) {
  Meant meant = [&name](const Submodule& place) { return place.name == name; };
  if (std::ranges::any_of(places, meant)) return meant;
  try {
    return [pattern = std::regex(name)](const Submodule& place) { return std::regex_match(place.name, pattern); };
  } catch (const std::regex_error&) {  // a name then, which nothing has
    return meant;
  }
}

void each_meant(const Module& root, const std::vector<Submodule>& places, const std::string& option,
                const std::string& name, bool by_class, const Meant& meant, SubmoduleFunction f) {
  bool found = false;
  for (const auto& place : places) {
    if (!meant(place)) continue;
    found = true;
    f(place);
  }
  if (found) return;
  std::set<std::string> known;
  for (const auto& place : places) known.insert(by_class ? bare_class(*place.module) : place.name);
  throw ConfigError("MU148", "no submodule of " + root.name() + (by_class ? " is of class '" : " is named '") + name +
                                 "', which the option " + option + " names; there are " +
                                 muster::listed(known));  // not the concept of this namespace
}

void find_repeated(const Module& parent, const std::string& prefix, NamedModules& found) {
  const bool container = dynamic_cast<const torch::nn::SequentialImpl*>(&parent) ||
                         dynamic_cast<const torch::nn::ModuleListImpl*>(&parent);
  const auto candidate = [&](const Module& child) {
    return !child.parameters().empty() && (container || !child.children().empty());
  };
  std::map<std::type_index, std::set<const Module*>> of_type;
  const auto children = parent.named_children();
  for (const auto& child : children)
    if (const Module& module = *child.value(); candidate(module)) of_type[typeid(module)].insert(&module);
  for (const auto& child : children) {
    const Module& module = *child.value();
    if (candidate(module) && of_type[typeid(module)].size() > 1) found.emplace(&module, qualified(prefix, child.key()));
    else find_repeated(module, qualified(prefix, child.key()), found);
  }
}

}  // namespace

std::string qualified(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<Submodule> submodules_of(const Module& root) {
  std::vector<Submodule> places;
  collect(root, "", places);
  return places;
}

void each_named(const Module& root, const std::vector<Submodule>& places, const std::string& option,
                const std::string& name, SubmoduleFunction f) {
  each_meant(root, places, option, name, /*by_class=*/false, meant_by(places, name), f);
}

void each_of_class(const Module& root, const std::vector<Submodule>& places, const std::string& option,
                   const std::string& name, SubmoduleFunction f) {
  each_meant(
      root, places, option, name, /*by_class=*/true,
      [&](const Submodule& place) { return has_class(*place.module, name); }, f);
}

void each_of_type(const Module& root, const std::vector<Submodule>& places, const std::string& option,
                  std::type_index type, SubmoduleFunction f) {
  const auto is_of = [&](const Submodule& place) {
    const Module& module = *place.module;
    return std::type_index(typeid(module)) == type;
  };
  each_meant(root, places, option, c10::demangle(type.name()), /*by_class=*/true, is_of, f);
}

bool is_named(const std::vector<Submodule>& places, const std::string& name) {
  return std::ranges::any_of(places, meant_by(places, name));
}

NamedModules repeated_modules(const Module& root) {
  NamedModules found;
  find_repeated(root, "", found);
  return found;
}

}  // namespace muster::tree
