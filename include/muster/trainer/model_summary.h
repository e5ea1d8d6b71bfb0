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

/// What is said of a module and of its parts; a parameter that several parts share counts once in each of them, and
/// once in a total. Sharded parameters count whole.
struct ModuleSummary {
  struct Row {
    std::string name, type;
    int64_t parameters = 0;
    bool training = true;
  };
  std::vector<Row> rows = {};    ///< of the parts down to a depth; a part's own parts follow it
  int64_t other_parameters = 0;  ///< in none of the parts, but in the module itself
  int64_t bytes = 0;             ///< of all parameters
  int64_t flops = 0;             ///< of an example; 0: not measured
  int64_t trainable = 0;
  int64_t frozen = 0;
  int64_t modules_in_train = 0, modules_in_eval = 0;  ///< of all parts at any depth
  int64_t total() const noexcept { return trainable + frozen; }
  /// As a table with totals.
  std::string text() const;
};

/// `max_depth`: 1 for the module's parts, 2 for theirs too, -1 for all, 0 for totals only.
/// Throws: ConfigError (MU451) for another depth.
ModuleSummary summarize(const torch::nn::Module& module, int max_depth = 1);

/// How a ModelSummary is shown.
struct ModelSummaryOptions {
  /// Runs forward on an example, as [](TrainerModule& module) { static_cast<Net&>(module).forward(x); }: the summary
  /// then has the flops of one. It is called in eval mode, on every rank, with the random numbers left as they are.
  std::function<void(TrainerModule&)> example = {};
  int max_depth = 1;  ///< as summarize(); 0: nothing is shown
  std::FILE* stream = stderr;
};

/// Shows a summary of the module where fit() begins, on the main rank. The Trainer adds one; its options switch it off.
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
