#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <type_traits>

#include "muster/trainer/module.h"
#include "muster/tree/detail/named_fields.h"

namespace muster {

namespace trainer {
/// Empty if the checkpoint has none.
State saved_hyperparameters(const std::filesystem::path& checkpoint);
/// Throws: CheckpointError (MU465) if the checkpoint has none.
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

/// A module as a checkpoint of a Trainer has it: made from nothing or, if its class has a plain struct `Options`, from
/// the options that its constructor gave to save_hyperparameters(); with the saved weights. `change` may change options
/// before. A file that Lightning wrote in Python is read as well. It needs no Trainer and no other rank, whatever
/// strategy wrote the checkpoint. Throws: CheckpointError (MU465) if no options were saved; MU228 for weights that do
/// not fit; as Checkpoint; for a file, MU466.
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
