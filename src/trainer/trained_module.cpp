#include "trained_module.h"

#include <algorithm>
#include <string>

#include "muster/base/error.h"
#include "runtime/release_model.h"
#include "trained_optimizer.h"

namespace muster::trainer {

PreparedBy::~PreparedBy() {
  if (const auto by = get()) by->drop();
}

void PreparedBy::set(const TrainerModule& module, const std::shared_ptr<TrainedModule>& by) {
  module_ = &module;
  by_ = by;
}

std::shared_ptr<TrainedModule> PreparedBy::get() const {
  auto by = by_.lock();
  return by && by->module == module_ ? by : nullptr;
}

void TrainedModule::wait_for_steps() {
  for (const auto& trained : optimizers) trained->wait_for_step();
}

int64_t TrainedModule::pending_steps() const {
  return std::ranges::count_if(optimizers, [](const auto& trained) { return trained->pending; });
}

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
                                "has taken it over, or after the module has ended: ask that Trainer, or run this one "
                                "again");
}

void TrainedModule::release() {
  drop_optimizers();  // they would keep the model
  runtime::release_model(model);
  drop();
}

}  // namespace muster::trainer
