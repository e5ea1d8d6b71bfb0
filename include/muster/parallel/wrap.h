#pragma once

#include <concepts>
#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace muster {

namespace parallel {

/// Marks the module as a unit for as long as it lives. Thread safety: any thread.
void mark_unit(const std::shared_ptr<torch::nn::Module>& module);
/// Whether this module went through wrap(). Thread safety: any thread.
bool is_unit(const torch::nn::Module& module);

}  // namespace parallel

/// Makes this module a unit: if parameters are sharded, the whole module is gathered and freed together. Returns the
/// given pointer. The mark belongs to the module, so wrap() may be called before or after registration, in the model's
/// code or from outside, until the model is prepared: `block = register_module("block", muster::wrap(Block(8)))`,
/// `muster::wrap(net->block)`, `muster::wrap(sequential->ptr(0))`. It changes nothing else, and has no effect if
/// parameters are not sharded. When sharded training begins, a warning (MU249) names the class of each module that the
/// thread has marked but no prepared model contains.
/// Requires: the module is owned by shared_ptrs.
template <std::derived_from<torch::nn::Module> M>
std::shared_ptr<M> wrap(std::shared_ptr<M> module) {
  if (module) parallel::mark_unit(module);
  return module;
}

template <class Holder>
  requires torch::detail::is_module_holder<Holder>::value
Holder wrap(Holder holder) {
  wrap(holder.ptr());
  return holder;
}

}  // namespace muster
