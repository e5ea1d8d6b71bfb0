#pragma once

#include "muster/parallel/options.h"

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace muster {

/// Options of replicated training; see parallel/options.h.
using DDP = parallel::DdpOptions;
/// Options of sharded training; see parallel/options.h.
using FSDP = parallel::ShardedOptions;

/// A way to train, by name or with options: "auto", "ddp", "ddp_find_unused_parameters_true", "fsdp",
/// muster::DDP{.bucket_cap_mb = 10}, muster::FSDP{}.
class Strategy {
 public:
  /// Throws: ConfigError (MU170) for an unknown name, listing the known ones.
  Strategy(const char* name) : Strategy(std::string_view(name)) {}
  Strategy(DDP options) : name_("ddp"), options_(std::move(options)) {}
  Strategy(FSDP options) : name_("fsdp"), options_(std::move(options)) {}
  /// Throws: as the constructor.
  static Strategy parse(std::string_view name) { return Strategy(name); }

  std::string_view name() const noexcept { return name_; }
  const std::variant<std::monostate, DDP, FSDP>& options() const noexcept { return options_; }
  static constexpr std::string_view kNames[] = {"auto", "ddp", "ddp_find_unused_parameters_true", "fsdp"};

 private:
  explicit Strategy(std::string_view name);

  std::string_view name_;   // one of kNames
  std::variant<std::monostate, DDP, FSDP> options_;
};

}  // namespace muster
