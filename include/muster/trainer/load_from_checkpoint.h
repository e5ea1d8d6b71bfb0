#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <type_traits>

#include "muster/trainer/module.h"
#include "muster/tree/detail/named_fields.h"

namespace muster {

namespace trainer {
/// The hyper-parameters in a checkpoint; empty if it has none.
State saved_hyperparameters(const std::filesystem::path& checkpoint);
/// The hyper-parameters in a checkpoint. Throws: CheckpointError (MU465) if it has none.
State hyperparameters_in(const std::filesystem::path& checkpoint);
void load_weights(TrainerModule& module, const std::filesystem::path& checkpoint);

template <class M>
concept has_options = requires { typename M::Options; };
template <class M>
struct OptionsOf {
  struct type {};  // NOLINT(readability-identifier-naming): as in std::type_identity
};
template <has_options M>
struct OptionsOf<M> {
  using type = typename M::Options;
};
template <class M>
using options_of = typename OptionsOf<M>::type;
}  // namespace trainer

/// Creates a module from a checkpoint of a Trainer and loads the saved weights. The module is default-constructed or,
/// if its class has a plain struct `Options`, constructed from the options that were passed to save_hyperparameters();
/// `change` may change these options first. Files that Lightning wrote in Python are read, too. Works without a Trainer
/// and without other ranks, for checkpoints of any strategy. Throws: CheckpointError (MU465) if no options were saved;
/// MU228 for weights that do not fit; as Checkpoint; for a file, MU466.
template <class M>
std::shared_ptr<M> load_from_checkpoint(
    const std::filesystem::path& checkpoint,
    [[maybe_unused]] const std::function<void(trainer::options_of<M>&)>& change = nullptr) {
  std::shared_ptr<M> module;
  if constexpr (trainer::has_options<M>) {
    typename M::Options options;
    tree::load_fields(options, trainer::hyperparameters_in(checkpoint));
    if (change) change(options);
    module = std::make_shared<M>(options);
  } else {
    static_assert(
        std::is_default_constructible_v<M>,
        "load_from_checkpoint makes a module from nothing, or from its plain struct `Options`: give it one of "
        "these constructors");
    module = std::make_shared<M>();
  }
  trainer::load_weights(*module, checkpoint);
  return module;
}

}  // namespace muster
