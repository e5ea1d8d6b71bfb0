#include "parallel/sharded/sharded_settings.h"

#include <cmath>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::parallel {
namespace {

constexpr std::pair<std::string_view, at::ScalarType> kShardDtypes[] = {
    {"f32", at::kFloat},         {"float32", at::kFloat},  {"fp32", at::kFloat},   {"bf16", at::kBFloat16},
    {"bfloat16", at::kBFloat16}, {"f16", at::kHalf},       {"float16", at::kHalf}, {"fp16", at::kHalf},
    {"f64", at::kDouble},        {"float64", at::kDouble},
};

std::optional<at::ScalarType> read_dtype(const char* option, const DtypeName& name) {
  if (name.empty()) return {};
  for (const auto& [word, dtype] : kShardDtypes)
    if (word == name.text()) return dtype;
  throw ConfigError("MU168", std::string(option) + " '" + name.text() + "' is not a dtype of sharded training" +
                                 known_ones(kShardDtypes, [](const auto& entry) { return entry.first; }) +
                                 "; or leave it empty for the dtype the module was built in");
}

void require_no_less(const char* option, double value, double least) {
  if (!(value >= least))
    throw ConfigError("MU168", std::string(option) + " is " + std::to_string(value) + ", but cannot be less than " +
                                   std::to_string(least));
}

}  // namespace

double ShardSettings::divisor_before(at::ScalarType dtype, int ranks) const {
  if (predivide > 0) return predivide;
  if (dtype != at::kHalf) return ranks;
  int divisor = 1;
  while (ranks % divisor == 0 && ranks / divisor > divisor) divisor *= 2;
  return divisor;
}

ShardSettings read_settings(const ShardedOptions& options, int shards) {
  if (options.stage == ShardStage::none)
    throw ConfigError("MU168",
                      "stage none shards nothing, so no sharded model can be made with it; stages are optimizer, "
                      "gradients and full, and the "
                      "strategy for whole models on every rank is \"ddp\"");
  require_no_less("limit_gathered_mb", options.limit_gathered_mb, 0);
  require_no_less("predivide_factor", options.predivide_factor, 0);
  if (!std::isfinite(options.predivide_factor))
    throw ConfigError("MU168", "predivide_factor is infinite, so that gradients would be zeros; give a number");
  const int post_forward_size = options.reshard_after_forward.ranks();
  if (post_forward_size != 0 && (post_forward_size < 1 || shards % post_forward_size != 0))
    throw ConfigError("MU168", "reshard_after_forward is " + std::to_string(std::max(post_forward_size, 0)) +
                                   ", but parameters are sharded over " + std::to_string(shards) +
                                   " ranks: choose a number that divides these, or true or false");
  ShardSettings settings;
  settings.keeps_after_forward = !options.reshard_after_forward;
  settings.post_forward_size =
      post_forward_size > 1 && post_forward_size < shards && options.stage == ShardStage::full ? post_forward_size : 0;
  constexpr double kMostBytes = 1ULL << 62U;  // bytes; converts an infinite limit to a finite number
  settings.limit_bytes = static_cast<int64_t>(std::min(options.limit_gathered_mb * 1024 * 1024, kMostBytes));
  settings.buffer_dtype = read_dtype("buffer_dtype", options.buffer_dtype);
  settings.cast_forward_inputs = options.cast_forward_inputs;
  settings.one_copy_per_host = options.one_copy_per_host;
  settings.output_dtype = read_dtype("output_dtype", options.output_dtype);
  settings.param_dtype = read_dtype("param_dtype", options.param_dtype);
  settings.reduce_dtype = read_dtype("reduce_dtype", options.reduce_dtype);
  settings.predivide = options.predivide_factor;
  settings.stage = options.stage;
  return settings;
}

}  // namespace muster::parallel
