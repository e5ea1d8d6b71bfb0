#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <utility>

namespace muster {

namespace parallel {

/// The mark of wrap(): it stands as the deleter of the pointer, where every copy of the pointer carries it.
struct UnitMark {
  std::shared_ptr<torch::nn::Module> keep;
  void operator()(torch::nn::Module*) noexcept { keep.reset(); }
};

/// Whether this pointer went through wrap().
inline bool is_unit(const std::shared_ptr<torch::nn::Module>& module) { return std::get_deleter<UnitMark>(module) != nullptr; }

}  // namespace parallel

/// Draws a unit's boundary round this module: where parameters are sharded, all of it is gathered and freed together.
/// Does nothing otherwise, so it can stay in a module's code: `block = register_module("block", muster::wrap(Block(8)))`.
template <std::derived_from<torch::nn::Module> M>
std::shared_ptr<M> wrap(std::shared_ptr<M> module) {
  auto* raw = module.get();
  return std::shared_ptr<M>(raw, parallel::UnitMark{std::move(module)});
}

template <class Holder>
  requires torch::detail::is_module_holder<Holder>::value
Holder wrap(Holder holder) {
  return Holder(wrap(holder.ptr()));
}

}  // namespace muster
