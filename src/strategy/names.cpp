#include "strategy/names.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/listing.h"
#include "base/spelling.h"
#include "muster/base/error.h"
#include "muster/strategy/options.h"

namespace muster {
namespace strategy {
namespace {

constexpr std::string_view kStaysOnDevice =
    "parameters and states stay on the device; use 'fsdp' over more ranks, or smaller batches";
constexpr std::string_view kNoModelParallel =
    "the layers of a model are not split over ranks; 'fsdp' reduces the memory they need";
constexpr std::string_view kNoXla = "LibTorch has no XLA; 'ddp' and 'fsdp' train on CPUs and GPUs";

/// Names that Accelerate, Lightning and PyTorch use, with Muster's.
constexpr StrategyAlias kAliases[] = {
    // Lightning
    {.name = "ddp_find_unused_parameters_false", .means = "ddp"},
    {.name = "ddp_fork", .means = "ddp"},
    {.name = "ddp_notebook", .means = "ddp"},
    {.name = "ddp_spawn", .means = "ddp"},
    {.name = "ddp_fully_sharded", .means = "fsdp"},
    {.name = "ddp_sharded", .means = "zero2"},
    {.name = "ddp_sharded_find_unused_parameters_false", .means = "zero2"},
    {.name = "ddp_sharded_spawn", .means = "zero2"},
    {.name = "deepspeed", .means = "zero2"},
    {.name = "deepspeed_stage_1", .means = "zero1"},
    {.name = "deepspeed_stage_1_offload", .instead = kStaysOnDevice},
    {.name = "deepspeed_stage_2", .means = "zero2"},
    {.name = "deepspeed_stage_2_offload", .instead = kStaysOnDevice},
    {.name = "deepspeed_stage_3", .means = "fsdp"},
    {.name = "deepspeed_stage_3_offload", .instead = kStaysOnDevice},
    {.name = "deepspeed_stage_3_offload_nvme", .instead = kStaysOnDevice},
    {.name = "dp", .instead = "one process per device by 'ddp' does the same faster"},
    {.name = "fsdp_cpu_offload", .instead = kStaysOnDevice},
    {.name = "fsdp_native", .means = "fsdp"},
    {.name = "fsdp_native_full_shard_offload", .instead = kStaysOnDevice},
    {.name = "model_parallel", .instead = kNoModelParallel},
    {.name = "single_tpu", .instead = kNoXla},
    {.name = "single_xla", .instead = kNoXla},
    {.name = "tpu_spawn", .instead = kNoXla},
    {.name = "xla", .instead = kNoXla},
    {.name = "xla_debug", .instead = kNoXla},
    {.name = "xla_fsdp", .instead = kNoXla},
    {.name = "ddpstrategy", .means = "ddp"},
    {.name = "ddpfullyshardedstrategy", .means = "fsdp"},
    {.name = "ddpfullyshardednativestrategy", .means = "fsdp"},
    {.name = "ddpshardedstrategy", .means = "zero2"},
    {.name = "ddpspawnshardedstrategy", .means = "zero2"},
    {.name = "ddpspawnstrategy", .means = "ddp"},
    {.name = "dataparallelstrategy", .instead = "one process per device by 'ddp' does the same faster"},
    {.name = "deepspeedstrategy", .means = "zero2"},
    {.name = "fsdpstrategy", .means = "fsdp"},
    {.name = "modelparallelstrategy", .instead = kNoModelParallel},
    {.name = "singledevicestrategy", .means = "auto"},
    // Accelerate
    {.name = "deepspeedplugin", .means = "zero2"},
    {.name = "fullyshardeddataparallelplugin", .means = "fsdp"},
    {.name = "fsdp2", .means = "fsdp"},
    {.name = "megatron_lm", .instead = kNoModelParallel},
    {.name = "multi_cpu", .means = "ddp"},
    {.name = "multi_gpu", .means = "ddp"},
    // PyTorch and fairscale
    {.name = "dataparallel", .instead = "one process per device by 'ddp' does the same faster"},
    {.name = "distributeddataparallel", .means = "ddp"},
    {.name = "fully_shard", .means = "fsdp"},
    {.name = "fullyshardeddataparallel", .means = "fsdp"},
    {.name = "oss", .means = "zero1"},
    {.name = "shardeddataparallel", .means = "zero2"},
    {.name = "zeroredundancyoptimizer", .means = "zero1"},
    // PyTorch's ShardingStrategy
    {.name = "full_shard", .means = "fsdp"},
    {.name = "hybrid_shard", .means = "hsdp"},
    {.name = "hybrid_shard_zero2", .means = "hsdp", .reshard_after_forward = false},
    {.name = "_hybrid_shard_zero2", .means = "hsdp", .reshard_after_forward = false},
    {.name = "no_shard", .means = "ddp"},
    {.name = "shard_grad_op", .means = "fsdp", .reshard_after_forward = false},
};

std::string_view fitting_name(const FSDP& options) {
  switch (options.stage) {
    case ShardStage::none: return "ddp";
    case ShardStage::optimizer: return "zero1";
    case ShardStage::gradients: return "zero2";
    case ShardStage::full: break;
  }
  return options.shard_group_size != 0 ? "hsdp" : "fsdp";
}

std::string choices() {
  auto known = known_ones(Strategy::kNames);
  known += "; the names of Accelerate, Lightning and PyTorch are accepted too:";
  for (const auto& alias : kAliases)
    if (!alias.means.empty()) known += " " + std::string(alias.name);
  return known;
}

void require_size(const char* option, double value) {
  if (!(value >= 0))
    throw ConfigError("MU347", std::string("the option ") + option + " of replicated training is " +
                                   std::to_string(value) + "; give a number of MiB from 0");
}

void require_hook(const std::string& name) {
  if (!is_comm_hook(name))
    throw ConfigError("MU157", "unknown comm_hook '" + name + "'" + known_ones(parallel::kCommHooks));
}

}  // namespace

bool is_comm_hook(const std::string& name) {
  return std::ranges::find(parallel::kCommHooks, name) != parallel::kCommHooks.end();
}

std::span<const StrategyAlias> strategy_aliases() { return kAliases; }

const StrategyAlias* find_alias(std::string_view name) {
  const auto small = lower_case(std::string(name));
  const auto* found = std::find_if(std::begin(kAliases), std::end(kAliases),
                                   [&](const StrategyAlias& alias) { return alias.name == small; });
  return found == std::end(kAliases) ? nullptr : found;
}

}  // namespace strategy

using Options = std::variant<std::monostate, DDP, FSDP>;

Strategy::Strategy(DDP options) : name_("ddp") {
  strategy::require_size("bucket_cap_mb", options.bucket_cap_mb);
  strategy::require_size("first_bucket_mb", options.first_bucket_mb);
  strategy::require_hook(options.comm_hook);
  options_ = std::make_shared<const Options>(std::move(options));
}
Strategy::Strategy(FSDP options)
    : name_(strategy::fitting_name(options)), options_(std::make_shared<const Options>(std::move(options))) {}

Strategy::Strategy(std::string_view name) {
  const auto* alias = strategy::find_alias(name);
  if (alias && alias->means.empty())
    throw ConfigError("MU197",
                      "the strategy '" + std::string(name) + "' is not supported: " + std::string(alias->instead));
  const auto wanted = alias ? std::string(alias->means) : lower_case(std::string(name));
  for (const auto entry : kNames)
    if (entry == wanted) name_ = entry;
  if (name_.empty()) throw ConfigError("MU170", "unknown strategy '" + std::string(name) + "'" + strategy::choices());
  FSDP sharding;
  sharding.reshard_after_forward = !alias || alias->reshard_after_forward;
  if (name_ == "zero1") sharding.stage = ShardStage::optimizer;
  if (name_ == "zero2") sharding.stage = ShardStage::gradients;
  if (name_ == "hsdp") sharding.shard_group_size = -1;
  if (name_ == "zero3") name_ = "fsdp";
  if (name_ == "fsdp" || name_ == "hsdp" || name_.starts_with("zero"))
    options_ = std::make_shared<const Options>(std::move(sharding));
  else options_ = std::make_shared<const Options>();
}

const Options& Strategy::options() const noexcept { return *options_; }
const FSDP* Strategy::sharding() const noexcept { return std::get_if<FSDP>(options_.get()); }

}  // namespace muster
