#include "muster/strategy/strategy.h"

#include "muster/base/error.h"
#include "parallel/replicated_model.h"
#include "parallel/sharded_model.h"
#include "parallel/single_device_model.h"
#include "shard/device_mesh.h"

namespace muster {
namespace {

/// A strategy of Muster's own.
class BuiltInStrategy final : public TrainingStrategy {
 public:
  using Setup = std::function<std::shared_ptr<ManagedModel>(torch::nn::Module&, const comm::Communicator&)>;
  BuiltInStrategy(std::string_view name, std::string reason, Setup setup)
      : name_(name), reason_(std::move(reason)), setup_(std::move(setup)) {}
  std::string_view name() const override { return name_; }
  std::string reason() const override { return reason_; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                             const comm::Communicator& group) const override {
    return setup_(module, group);
  }

 private:
  std::string_view name_;
  std::string reason_;
  Setup setup_;
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
    return std::make_shared<BuiltInStrategy>(
        "single", "a world of one needs no communication (asked for: " + std::string(strategy.name()) + ")",
        [](auto& module, const auto&) { return std::make_shared<parallel::SingleDeviceModel>(module); });
  if (shards) {
    const auto& options = *strategy.sharding();
    const int size = world_size == 1 ? 1 : group_size_of(options, world_size, ranks_per_node);
    return std::make_shared<BuiltInStrategy>(
        strategy.name(), "asked for", [options, size](auto& module, const comm::Communicator& group) {
          if (size == group.size()) return std::make_shared<parallel::ShardedModel>(module, group, options);
          const DeviceMesh mesh(group, {{"replicate", 0}, {"shard", size}});
          return std::make_shared<parallel::ShardedModel>(module, mesh.group("shard"), mesh.group("replicate"),
                                                          options);
        });
  }
  const auto* given = std::get_if<DDP>(&strategy.options());
  auto options = given ? *given : DDP{};
  if (strategy.name() == "ddp_find_unused_parameters_true") options.find_unused_parameters = true;
  return std::make_shared<BuiltInStrategy>("ddp", strategy.name() == "auto" ? "auto: more than one rank" : "asked for",
                                           [options](auto& module, const auto& group) {
                                             return std::make_shared<parallel::ReplicatedModel>(module, group, options);
                                           });
}

}  // namespace muster
