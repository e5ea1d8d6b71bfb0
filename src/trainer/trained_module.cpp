#include "trained_module.h"

#include <string>

#include "muster/base/error.h"
#include "muster/runtime/detail/release_model.h"

namespace muster::trainer {

void TrainedModule::drop_optimizers() {
  handles.clear();
  schedulers.clear();
  optimizers.clear();
}

void TrainedModule::drop() {
  drop_optimizers();  // they would keep the model
  module = nullptr;
  model = {};
}

const Model<torch::nn::Module>& TrainedModule::required_model(const char* call) const {
  if (model) return model;
  throw UsageError("MU446", std::string(call) +
                                " was called before the first run, which prepares the module, or after another Trainer "
                                "has taken it over: ask that one, or run this one again");
}

void TrainedModule::release() {
  drop_optimizers();  // they would keep the model
  runtime::release_model(model);
  drop();
}

}  // namespace muster::trainer
