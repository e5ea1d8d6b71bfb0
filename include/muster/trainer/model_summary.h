#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace torch::nn {
class Module;
}

namespace muster {

/// A summary of a module and its submodules. A parameter that several submodules share counts once in each of them, and
/// once in a total. Sharded parameters count in full.
struct ModuleSummary {
  struct Row {
    std::string name, type;
    int64_t parameters = 0;
    bool training = true;
  };
  std::vector<Row> rows = {};    ///< one per submodule, down to a depth; children follow their parent
  int64_t other_parameters = 0;  ///< parameters of the module itself
  int64_t bytes = 0;             ///< size of all parameters
  int64_t flops = 0;             ///< of a forward on an example; 0: not measured
  int64_t trainable = 0;
  int64_t frozen = 0;
  int64_t modules_in_train = 0, modules_in_eval = 0;  ///< counts of submodules at any depth
  int64_t total() const noexcept { return trainable + frozen; }
  /// The summary as a table with totals.
  std::string text() const;
};

/// `max_depth`: 1 for the module's children, 2 for their children too, -1 for all, 0 for totals only.
/// Throws: ConfigError (MU451) for a depth below -1.
ModuleSummary summarize(const torch::nn::Module& module, int max_depth = 1);

/// How a ModelSummary is shown.
struct ModelSummaryOptions {
  /// Runs forward on an example, as [](TrainerModule& module) { static_cast<Net&>(module).forward(x); }: the summary
  /// then shows the flops of that forward. Called in eval mode, on every rank; random states are restored afterwards.
  std::function<void(TrainerModule&)> example = {};
  int max_depth = 1;  ///< as in summarize(); 0: nothing is shown
  std::FILE* stream = stderr;
};

/// Shows a summary of the module at the beginning of fit(), on the main rank. The Trainer adds one unless its options
/// switch it off.
/// Collective: on_fit_start(), with an example.
class ModelSummary : public Callback {
 public:
  /// Throws: ConfigError (MU451) for a max_depth below -1.
  explicit ModelSummary(ModelSummaryOptions options = {});
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;

 private:
  ModelSummaryOptions options_;
};

}  // namespace muster
