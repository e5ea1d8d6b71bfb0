#pragma once  // for other rooms

#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

/// The submodules of a module, and those of them that options name.
namespace muster::tree {

/// One occurrence of a submodule; a reused module has several.
struct Submodule {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
};
using NamedModules = std::map<const torch::nn::Module*, std::string>;
using SubmoduleFunction = c10::function_ref<void(const Submodule&)>;

/// "prefix.name", or the name alone if the prefix is empty.
std::string qualified(const std::string& prefix, const std::string& name);

/// All submodules, outer ones first. Module::named_modules would throw for a module that no shared_ptr owns.
std::vector<Submodule> submodules_of(const torch::nn::Module& root);

/// Call f for every submodule of the root, among `places`, that has this name or whose whole name this regular
/// expression matches; that is of this class, "Block" or "BlockImpl" for "(anonymous namespace)::BlockImpl"; that is of
/// exactly this type.
/// Throw: ConfigError (MU148) if there is none. The error names the option and lists what there is.
void each_named(const torch::nn::Module& root, const std::vector<Submodule>& places, const std::string& option,
                const std::string& name, SubmoduleFunction f);
void each_of_class(const torch::nn::Module& root, const std::vector<Submodule>& places, const std::string& option,
                   const std::string& name, SubmoduleFunction f);
void each_of_type(const torch::nn::Module& root, const std::vector<Submodule>& places, const std::string& option,
                  std::type_index type, SubmoduleFunction f);

/// Whether each_named() finds a submodule.
bool is_named(const std::vector<Submodule>& places, const std::string& name);

/// Repeated blocks: children of one module that have parameters and equal type, in a Sequential or ModuleList, or
/// anywhere if they have children. Does not look for blocks within blocks.
NamedModules repeated_modules(const torch::nn::Module& root);

}  // namespace muster::tree
