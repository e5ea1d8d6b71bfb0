#pragma once

#include <exception>
#include <utility>

#include "muster/trainer/options.h"
#include "muster/tree/state.h"

namespace muster {

/// Base class for the data of a run. The loaders are ordinary members, found at compile time:
///   auto train_dataloader() { return muster::DataLoader(images_, {.batch_size = 64, .shuffle = true}); }
/// and val_dataloader, test_dataloader, predict_dataloader. If it has on_before_batch_transfer,
/// transfer_batch_to_device or on_after_batch_transfer, they replace the module's.
class DataModule {
 public:
  virtual ~DataModule() = default;
  /// Downloads or prepares data; called on the first rank of each node, before the others continue.
  virtual void prepare_data() {}
  virtual void setup(Stage) {}
  virtual void teardown(Stage) {}
  /// Keeps the data's hyper-parameters, as TrainerModule::save_hyperparameters() does. If the module has one of these
  /// names too, both values must be equal (MU434).
  void save_hyperparameters(State values) { hyperparameters_ = std::move(values); }
  const State& hyperparameters() const noexcept { return hyperparameters_; }
  virtual void on_exception(const std::exception_ptr&) {}
  /// The state that checkpoints save; empty: none.
  virtual State state_dict() const { return {}; }
  virtual void load_state_dict(const State&) {}

 private:
  State hyperparameters_;
};

}  // namespace muster
