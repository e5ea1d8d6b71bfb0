#pragma once

#include <concepts>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>

#include "muster/parallel/options.h"

namespace muster {

class TrainingStrategy;

/// Options of replicated training; see muster/parallel/options.h.
using DDP = parallel::DdpOptions;
/// Options of sharded training; see muster/parallel/sharded_options.h.
using FSDP = parallel::ShardedOptions;

/// A training strategy, by name or with options: "auto", "ddp", "fsdp", muster::DDP{.bucket_cap_mb = 10},
/// muster::FSDP{.auto_wrap = false}; or an object of a custom class, see strategy/strategy.h.
///
/// "fsdp" and "zero3" shard parameters, gradients and optimizer state; "zero2" shards gradients and optimizer state,
/// "zero1" optimizer state. "hsdp" is fsdp over the ranks of each node. The names that Accelerate, Lightning, PyTorch
/// and DeepSpeed use are accepted too, in upper or lower case: "FULL_SHARD", "deepspeed_stage_2", ...;
/// docs/reference/strategies.md has the table.
class Strategy {
 public:
  /// Throws: ConfigError (MU170) for an unknown name, listing the known ones; ConfigError (MU197) for an unsupported
  /// strategy of Accelerate, Lightning, PyTorch or DeepSpeed, with what to use instead.
  Strategy(const char* name) : Strategy(std::string_view(name)) {}
  Strategy(DDP options);
  Strategy(FSDP options);
  /// A custom strategy, std::make_shared<Mine>(). It is used in a world of one, too. If a launcher requests another
  /// strategy, or options, that contradicts it (MU171).
  /// Throws: UsageError (MU341) if it is empty.
  Strategy(std::shared_ptr<const TrainingStrategy> own);
  template <class S>
    requires std::convertible_to<S*, const TrainingStrategy*>
  Strategy(std::shared_ptr<S> own) : Strategy(std::shared_ptr<const TrainingStrategy>(std::move(own))) {}
  /// Throws: as the constructor from a name.
  static Strategy parse(std::string_view name) { return Strategy(name); }

  /// One of kNames (if options were given, the closest one), or the name of a custom strategy.
  std::string_view name() const noexcept { return name_; }
  const std::variant<std::monostate, DDP, FSDP>& options() const noexcept;
  /// The options if parameters, gradients or state are sharded, else nullptr.
  const FSDP* sharding() const noexcept;
  /// The custom strategy; empty if there is none.
  const std::shared_ptr<const TrainingStrategy>& custom() const noexcept { return custom_; }
  static constexpr std::string_view kNames[] = {
      "auto", "ddp", "ddp_find_unused_parameters_true", "fsdp", "hsdp", "zero1", "zero2", "zero3"};

 private:
  explicit Strategy(std::string_view name);

  std::string_view name_;
  std::shared_ptr<const std::variant<std::monostate, DDP, FSDP>> options_;
  std::shared_ptr<const TrainingStrategy> custom_;
};

using ShardStage = parallel::ShardStage;

}  // namespace muster
