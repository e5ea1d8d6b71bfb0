#pragma once

#include <memory>
#include <string_view>
#include <variant>

namespace muster {

namespace parallel {
struct DdpOptions;
struct ShardedOptions;
}  // namespace parallel

/// Options of replicated training; see muster/parallel/options.h.
using DDP = parallel::DdpOptions;
/// Options of sharded training; see muster/parallel/sharded_options.h.
using FSDP = parallel::ShardedOptions;

/// A training strategy, by name or with options: "auto", "ddp", "fsdp", muster::DDP{.bucket_cap_mb = 10},
/// muster::FSDP{.auto_wrap = false}.
///
/// "fsdp" and "zero3" shard parameters, gradients and optimizer state, "zero2" the latter two, "zero1" optimizer state;
/// "hsdp" is fsdp over the ranks of each node. The names that Accelerate, Lightning, PyTorch and DeepSpeed use mean the
/// same here, in upper or lower case: "FULL_SHARD", "deepspeed_stage_2", ...; docs/reference/strategies.md has the
/// table.
class Strategy {
 public:
  /// Throws: ConfigError (MU170) for an unknown name, listing the known ones; ConfigError (MU197) for an unsupported
  /// strategy of Accelerate, Lightning, PyTorch or DeepSpeed, with what to use instead.
  Strategy(const char* name) : Strategy(std::string_view(name)) {}
  /// A program that gives options includes muster/strategy/options.h.
  Strategy(DDP options);
  Strategy(FSDP options);
  /// Throws: as the constructor.
  static Strategy parse(std::string_view name) { return Strategy(name); }

  /// One of kNames; if options were given, the one that fits them best.
  std::string_view name() const noexcept { return name_; }
  const std::variant<std::monostate, DDP, FSDP>& options() const noexcept;
  /// The options if parameters, gradients or state are sharded, else nullptr.
  const FSDP* sharding() const noexcept;
  static constexpr std::string_view kNames[] = {
      "auto", "ddp", "ddp_find_unused_parameters_true", "fsdp", "hsdp", "zero1", "zero2", "zero3"};

 private:
  explicit Strategy(std::string_view name);

  std::string_view name_;
  std::shared_ptr<const std::variant<std::monostate, DDP, FSDP>> options_;
};

}  // namespace muster
