#include "custom_precision.h"

#include <optional>
#include <variant>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/precision/plugin.h"
#include "muster/strategy/options.h"

namespace muster::runtime {
namespace {

[[noreturn]] void refuse_dtype(const PrecisionPlugin& custom, at::ScalarType dtype, const Strategy& strategy,
                               const std::string& why) {
  throw ConfigError("MU311", formatted("the precision policy '{}' wants gradients summed in {}, but the strategy is "
                                       "'{}', which {}; let reduce_dtype() return nothing, or choose 'fsdp' or 'zero2'",
                                       custom.name(), c10::toString(dtype), strategy.name(), why));
}

/// Replicated training sums gradients in the dtype of the parameters, or in a half dtype through a communication hook.
Strategy replicated_with(const Strategy& strategy, const PrecisionPlugin& custom, at::ScalarType dtype) {
  const auto* given = std::get_if<DDP>(&strategy.options());
  auto options = given ? *given : DDP();
  if (dtype == custom.parameter_dtype() || options.comm_hook != "none" || options.custom_hook) return strategy;
  if (dtype != at::kBFloat16 && dtype != at::kHalf)
    refuse_dtype(custom, dtype, strategy, "sums in the dtype of the parameters, in BFloat16 or in Half");
  if (strategy.name() == "ddp_find_unused_parameters_true") options.find_unused_parameters = true;
  options.comm_hook = dtype == at::kHalf ? "fp16" : "bf16";
  return options;
}

}  // namespace

std::string describe(const Precision& precision) {
  const auto* custom = precision.custom().get();
  if (!custom) return std::string(precision.name());
  auto text = formatted("{} (given by the program; parameters {}, computed in {}", custom->name(),
                        c10::toString(custom->parameter_dtype()), c10::toString(custom->compute_dtype()));
  if (const auto dtype = custom->autocast_dtype()) text += formatted(", autocast to {}", c10::toString(*dtype));
  if (const auto dtype = custom->reduce_dtype()) text += formatted(", gradients summed in {}", c10::toString(*dtype));
  if (custom->scales_losses()) text += ", losses scaled";
  return text + ")";
}

Strategy with_reduce_dtype(const Strategy& strategy, const Precision& precision, int world_size) {
  const auto* custom = precision.custom().get();
  const auto dtype = custom ? custom->reduce_dtype() : std::nullopt;
  if (!dtype || world_size == 1) return strategy;
  if (strategy.custom()) refuse_dtype(*custom, *dtype, strategy, "is the program's own and sums gradients as it does");
  const auto* sharding = strategy.sharding();
  if (!sharding || sharding->stage == ShardStage::none) return replicated_with(strategy, *custom, *dtype);
  auto options = *sharding;
  if (options.reduce_dtype.empty()) options.reduce_dtype = *dtype;
  return options;
}

void require_same_precision(const comm::Communicator& group, const Precision& precision) {
  if (!precision.custom().get() || group.size() == 1) return;
  const auto texts =
      group.internal("comparing the precision policies of the program").all_gather_bytes(describe(precision));
  if (const auto found = comm::first_difference(texts))
    throw ConfigError("MU312",
                      formatted("ranks have different precisions: rank 0 has {}, rank {} has {}; give the same "
                                "policy on every rank",
                                found->first, found->rank, found->other));
}

}  // namespace muster::runtime
