#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::comm {
class Communicator;
}

namespace muster::parallel {
class ManagedModel;
}

namespace torch::nn {
class Module;
}

namespace muster {

/// Options of LocalSGD.
struct LocalSgdOptions {
  /// Off: ordinary training, and step() does nothing.
  bool enabled = true;
  /// Number of optimizer steps between two averagings.
  int64_t local_sgd_steps = 8;
};

/// Local SGD (Stich 2019): each rank updates its parameters locally, and parameters are averaged every few optimizer
/// steps instead of gradients in every step. While this object exists, gradients stay local.
/// Optimizer states stay local. When parameters are averaged, buffers get the values of rank 0.
/// Thread safety: one thread at a time.
class LocalSGD {
 public:
  /// Requires: module and model outlive this object.
  /// Throws: ConfigError (MU159) for less than one step, or a model whose parameters are sharded.
  LocalSGD(torch::nn::Module& module, parallel::ManagedModel& model, const comm::Communicator& group,
           LocalSgdOptions options = {});
  /// For a prepared model: LocalSGD local(accelerator.group(), model, {.local_sgd_steps = 8}).
  template <class Model>
  LocalSGD(const comm::Communicator& group, const Model& model, LocalSgdOptions options = {})
      : LocalSGD(*model, *managed_by(*model.prepared()), group, options) {}
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;
  /// Communicates gradients again from now on. Averages nothing: call finish() first.
  ~LocalSGD();

  /// Counts an optimizer step; call it after each one. Collective: every local_sgd_steps-th call.
  void step();
  /// Averages the updates since the last averaging, so that all ranks end with equal parameters. Collective.
  void finish();
  /// Steps since the last averaging.
  int64_t pending() const noexcept { return pending_; }

 private:
  void average();
  void average_values();
  void collect();

  torch::nn::Module& module_;
  parallel::ManagedModel& model_;
  std::unique_ptr<const comm::Communicator> group_;
  LocalSgdOptions options_;
  std::vector<at::Tensor> parameters_, values_;
  int64_t pending_ = 0;
  bool synced_before_;
};

}  // namespace muster
