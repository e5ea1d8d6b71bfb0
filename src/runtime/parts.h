#pragma once

#include "muster/cluster/cluster.h"
#include "muster/data/loader.h"
#include "muster/dist/communicator.h"
#include "muster/optim/fused.h"
#include "muster/optim/scheduler.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"
#include "muster/runtime/options.h"
#include "muster/strategy/strategy.h"

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::runtime {

/// The models of one runtime, for its optimizers: who holds which parameter. Grows only.
class ModelRegistry {
 public:
  void add(const std::shared_ptr<PreparedModel>& model);
  /// The living models, in the order in which they were prepared.
  std::vector<std::shared_ptr<PreparedModel>> models() const;
  std::shared_ptr<PreparedModel> find(const torch::nn::Module& module) const;
  /// Changes whenever a model is added.
  int64_t generation() const noexcept { return generation_; }

 private:
  std::vector<std::weak_ptr<PreparedModel>> models_;
  int64_t generation_ = 0;
};

/// The state of an Optimizer handle. Which model holds which of its parameters is looked up at the first step,
/// so that models and optimizers may be prepared in any order.
class PreparedOptimizer {
 public:
  PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<ModelRegistry> registry, dist::Communicator group);
  at::Tensor step(torch::optim::Optimizer::LossClosure closure);
  void zero_grad(bool set_to_none);
  optim::FusedOptimizer& fused() { return fused_; }
  torch::optim::Optimizer& inner() const { return *inner_; }
  const std::shared_ptr<torch::optim::Optimizer>& owner() const { return inner_; }

 private:
  void bind();
  void bind_parameter(const at::Tensor& parameter, size_t index);

  std::shared_ptr<torch::optim::Optimizer> inner_;
  std::shared_ptr<ModelRegistry> registry_;
  dist::Communicator group_;
  optim::FusedOptimizer fused_;
  std::vector<std::shared_ptr<PreparedModel>> models_;
  int64_t bound_generation_ = -1;
};

/// The parts that a Runtime owns.
class Parts {
 public:
  explicit Parts(const RuntimeOptions& options);
  void launch();
  /// Throws: UsageError (MU172) before launch() where several ranks were asked for.
  void require_launched() const;
  std::shared_ptr<PreparedModel> prepare_model(std::shared_ptr<torch::nn::Module> module);
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  Scheduler prepare_scheduler(std::shared_ptr<muster::LRScheduler> scheduler);
  Scheduler prepare_scheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler);
  Scheduler prepare_scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler);
  data::ShardSpec prepare_loader(const DataLoaderOptions& options);
  void backward(const at::Tensor& loss, bool retain_graph);
  double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double p, bool error_if_nonfinite);
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);
  std::string plan() const;
  void set_seed(uint64_t seed, bool per_rank);

  const Cluster& cluster() const noexcept { return cluster_; }
  const dist::Communicator& group() const;
  c10::Device device() const noexcept { return device_; }
  Precision precision() const noexcept { return options_.precision; }
  bool launched() const noexcept { return launched_; }

 private:
  void connect();
  void share_cores();
  void for_each_optimizer(const std::function<void(optim::FusedOptimizer&)>& f) const;

  RuntimeOptions options_;
  Cluster cluster_;
  c10::Device device_;
  dist::Communicator group_;
  std::shared_ptr<ModelRegistry> registry_;
  std::unique_ptr<strategy::TrainingStrategy> strategy_;
  std::vector<std::weak_ptr<PreparedOptimizer>> optimizers_;
  std::optional<uint64_t> seed_;
  std::vector<std::string> notes_;   // lines of plan() beyond the fixed ones
  bool launched_ = false;
};

}  // namespace muster::runtime
