#pragma once  // for other rooms

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "graph/recording.h"
#include "muster/optim/clip.h"
#include "muster/precision/policy.h"
#include "muster/runtime/model.h"
#include "muster/track/trace.h"

namespace muster::runtime {

class ForwardScope;

/// The runtime's record of one prepared module. Shared by the handle, the optimizers and the runtime.
struct PreparedModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<parallel::ManagedModel> managed;
  precision::PrecisionPolicy policy;
  c10::DeviceType device;
  std::shared_ptr<Trace> trace;
  std::function<GradNorm()> grad_norm = {};                 ///< implementation of Model::grad_norm()
  std::function<void(c10::Error&)> add_error_context = {};  ///< handler of LibTorch's errors in a forward
  std::vector<const ForwardScope*> scopes = {};             ///< open scopes, from the outermost on
  std::shared_ptr<graph::Blocks> recomputed = {};           ///< blocks whose activations are made again, if any
  std::function<void()> choose_recomputed = {};             ///< once they are measured; collective
};

/// One forward of the model: autocast is on, and parameters are in place. Scopes nest.
class [[nodiscard]] ForwardScope {
 public:
  explicit ForwardScope(PreparedModel& model);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  ~ForwardScope();

 private:
  friend class ForwardPause;
  void open() const;
  void close() const noexcept;

  PreparedModel& model_;
  mutable std::optional<TraceScope> span_;  // trace of the forward; empty while the scope is closed
  mutable std::optional<precision::AutocastScope> cast_;
  mutable std::optional<graph::Recording> recording_;  // last, since it ends before parameters are freed
};

/// Closes the open forward scopes of a model until resume(). Without resume(), as after an exception, they stay closed.
class [[nodiscard]] ForwardPause {
 public:
  explicit ForwardPause(PreparedModel& model);
  /// Throws: what opening a forward throws; the scopes that are not open then stay closed.
  void resume() const;

 private:
  std::vector<const ForwardScope*> scopes_;
};

/// Empties the handle and restores the module as it was before prepare(): with full parameters, in its own dtypes where
/// sharding used others, and without gradients where they were sharded. Another runtime may then prepare it.
/// Requires: the optimizers that were prepared for the model are gone. Collective: where parameters are sharded.
/// Throws: UsageError (MU439) if another handle of the model exists; this handle then keeps it.
/// Why: docs/decisions/0118-a-module-goes-from-one-trainer-to-another.md.
void release_model(Model<torch::nn::Module>& model);

}  // namespace muster::runtime
