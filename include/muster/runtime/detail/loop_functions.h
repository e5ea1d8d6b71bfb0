#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>

#include "muster/data/detail/progress_bar.h"
#include "muster/runtime/detail/evaluation_scope.h"
#include "muster/runtime/detail/runtime.h"

namespace muster::runtime {

/// What a training loop uses beside the runtime; the first two are functions of muster, too.
class LoopFunctions : public Runtime {
 public:
  using Runtime::Runtime;
  /// The runtime behind muster::Accelerator.
  explicit LoopFunctions(const AcceleratorOptions& options);

  /// As muster::evaluation(): eval mode and no gradients until the scope ends.
  template <class... M>
  EvaluationScope evaluation(M&&... models) const {
    return muster::evaluation(models...);
  }

  /// As muster::progress(); on the main rank only, also if the loader was not prepared.
  template <class L>
  ProgressBar<L> progress(const L& loader, std::string title = {}, ProgressOptions options = {}) const {
    options.quiet = options.quiet || !is_main();
    return muster::progress(loader, std::move(title), std::move(options));
  }

  /// Gives the default generators of LibTorch that are named, and the generators given, the states that they have on
  /// rank 0: synchronize_rng_states({.cpu = true}, mine).
  /// Collective. Throws, on all ranks: UsageError (MU328) if ranks give different generators; (MU329) for an undefined
  /// one.
  template <std::same_as<at::Generator>... G>
  void synchronize_rng_states(const SyncedGenerators& kinds, const G&... generators) const {
    synchronize(kinds, {generators...});
  }

 private:
  void synchronize(const SyncedGenerators& kinds, std::vector<at::Generator> generators) const;
};

}  // namespace muster::runtime
