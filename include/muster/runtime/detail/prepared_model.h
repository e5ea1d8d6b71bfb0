#pragma once

#include <functional>
#include <memory>

#include <torch/nn/module.h>

#include "muster/precision/detail/policy.h"
#include "muster/runtime/detail/model.h"
#include "muster/track/detail/trace.h"

namespace muster::runtime {

/// The runtime's record of one prepared module. Shared by the handle, the optimizers and the runtime.
struct PreparedModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<parallel::ManagedModel> managed;
  precision::PrecisionPolicy policy;
  c10::DeviceType device;
  std::shared_ptr<Trace> trace;
  std::function<double()> grad_norm = {};  ///< what Model::grad_norm() calls
};

/// Scope of one forward of the model: autocast is on, parameters are in place.
class [[nodiscard]] ForwardScope {
 public:
  explicit ForwardScope(PreparedModel& model);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope();

 private:
  PreparedModel& model_;
  TraceScope span_;
  precision::AutocastScope cast_;
};

}  // namespace muster::runtime
