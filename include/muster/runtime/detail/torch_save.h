#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include <torch/serialize/archive.h>

#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"

namespace muster::runtime {

/// Waits until the module's parameters hold their values, since LibTorch's archives read their memory without calling
/// Muster.
/// Throws: UsageError (MU161), naming the parameter, if one is sharded.
void prepare_for_archive(const torch::nn::Module& module);

template <class T>
inline constexpr bool is_prepared_model = false;
template <class M>
inline constexpr bool is_prepared_model<Model<M>> = true;

template <class T>
concept SavedModule = ModuleHolder<T> || ModulePointer<T>;
template <class T>
concept PreparedHandle = is_prepared_model<T> || std::same_as<T, Optimizer>;

}  // namespace muster::runtime

namespace torch {

/// LibTorch's torch::save for modules, called once their values can be read.
template <typename Value, typename... SaveToArgs>
  requires muster::runtime::SavedModule<Value>
void save(const Value& value, SaveToArgs&&... args) {
  if (const auto module = muster::runtime::module_pointer(value)) muster::runtime::prepare_for_archive(*module);
  serialize::OutputArchive archive(std::make_shared<jit::CompilationUnit>());
  archive << value;
  archive.save_to(std::forward<SaveToArgs>(args)...);
}

/// Does not compile; the message tells what to call instead.
template <typename Value, typename... SaveToArgs>
  requires muster::runtime::PreparedHandle<Value>
void save(const Value&, SaveToArgs&&...) {
  static_assert(!muster::runtime::is_prepared_model<Value>,
                "torch::save takes no prepared model: write its weights by save_model(model, folder) of the object "
                "that prepared it");
  static_assert(muster::runtime::is_prepared_model<Value>,
                "torch::save takes no prepared optimizer: write it with the model by save_state or save of the object "
                "that prepared it");
}

}  // namespace torch
