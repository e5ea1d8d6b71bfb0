#include "muster/strategy/strategy.h"

#include "muster/base/error.h"
#include "parallel/replicated_model.h"
#include "parallel/sharded_model.h"
#include "parallel/single_device_model.h"
#include "shard/device_mesh.h"

namespace muster {
namespace {

class SingleDeviceStrategy final : public TrainingStrategy {
 public:
  explicit SingleDeviceStrategy(std::string reason) : reason_(std::move(reason)) {}
  std::string_view name() const override { return "single"; }
  std::string reason() const override { return reason_; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module, const comm::Communicator&) const override {
    return std::make_shared<parallel::SingleDeviceModel>(module);
  }

 private:
  std::string reason_;
};

class DdpStrategy final : public TrainingStrategy {
 public:
  DdpStrategy(DDP options, std::string reason) : options_(std::move(options)), reason_(std::move(reason)) {}
  std::string_view name() const override { return "ddp"; }
  std::string reason() const override { return reason_; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                             const comm::Communicator& group) const override {
    return std::make_shared<parallel::ReplicatedModel>(module, group, options_);
  }

 private:
  DDP options_;
  std::string reason_;
};

class FsdpStrategy final : public TrainingStrategy {
 public:
  FsdpStrategy(std::string_view name, FSDP options, int group_size)
      : name_(name), options_(std::move(options)), group_size_(group_size) {}
  std::string_view name() const override { return name_; }
  std::string reason() const override { return "asked for"; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                             const comm::Communicator& group) const override {
    if (group_size_ == group.size()) return std::make_shared<parallel::ShardedModel>(module, group, options_);
    const DeviceMesh mesh(group, {{"replicate", 0}, {"shard", group_size_}});
    return std::make_shared<parallel::ShardedModel>(module, mesh.group("shard"), mesh.group("replicate"), options_);
  }

 private:
  std::string_view name_;
  FSDP options_;
  int group_size_;
};

/// The number of ranks over which parameters are sharded.
int group_size_of(const FSDP& options, int world_size, int ranks_per_node) {
  const int size = options.shard_group_size == 0    ? world_size
                   : options.shard_group_size == -1 ? ranks_per_node
                                                    : options.shard_group_size;
  if (size < 1 || world_size % size != 0)
    throw ConfigError(
        "MU198", "parameters cannot be sharded over groups of " + std::to_string(size) + " ranks where there are " +
                     std::to_string(world_size) +
                     " in all: choose a shard_group_size that divides these, or -1 for the ranks of each node");
  if (options.replicas != 0 && options.replicas != world_size / size)
    throw ConfigError("MU198", std::to_string(options.replicas) + " replicas over groups of " + std::to_string(size) +
                                   " ranks are asked for, and " + std::to_string(world_size) + " ranks make " +
                                   std::to_string(world_size / size) +
                                   ": start as many ranks as both ask for, or leave replicas out");
  return size;
}

/// Whether the options change dtypes, and with them results: such options also apply in a world of one.
bool changes_dtypes(const FSDP& options) {
  return !options.buffer_dtype.empty() || !options.output_dtype.empty() || !options.param_dtype.empty();
}

template <class Options>
Options options_of(const Strategy& strategy) {
  if (const auto* given = std::get_if<Options>(&strategy.options())) return *given;
  return {};
}

const std::shared_ptr<const TrainingStrategy>& present(const std::shared_ptr<const TrainingStrategy>& own) {
  if (!own)
    throw UsageError("MU341",
                     "the strategy given is an empty pointer; make it first, for example by "
                     "std::make_shared<Mine>(), or give a name such as \"auto\"");
  return own;
}

}  // namespace

// Defined here because the other constructors are in the library without tensors.
Strategy::Strategy(std::shared_ptr<const TrainingStrategy> own)
    : name_(present(own)->name()), options_(std::make_shared<const std::variant<std::monostate, DDP, FSDP>>()),
      custom_(std::move(own)) {}

std::shared_ptr<const TrainingStrategy> make_strategy(const Strategy& strategy, int world_size, int ranks_per_node) {
  if (strategy.custom()) return strategy.custom();
  const bool shards = strategy.sharding() && strategy.sharding()->stage != ShardStage::none;
  if (world_size == 1 && !(shards && changes_dtypes(*strategy.sharding())))
    return std::make_shared<SingleDeviceStrategy>(
        "a world of one needs no communication (asked for: " + std::string(strategy.name()) + ")");
  if (shards) {
    const auto& options = *strategy.sharding();
    return std::make_shared<FsdpStrategy>(strategy.name(), options,
                                          world_size == 1 ? 1 : group_size_of(options, world_size, ranks_per_node));
  }
  auto options = options_of<DDP>(strategy);
  if (strategy.name() == "ddp_find_unused_parameters_true") options.find_unused_parameters = true;
  return std::make_shared<DdpStrategy>(options, strategy.name() == "auto" ? "auto: more than one rank" : "asked for");
}

}  // namespace muster
