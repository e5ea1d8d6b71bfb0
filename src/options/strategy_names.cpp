#include "base/text.h"
#include "muster/base/error.h"
#include "muster/parallel/options.h"
#include "muster/strategy/options.h"
#include "options/strategy_fields.h"

namespace muster::parallel {

bool is_comm_hook(std::string_view name) { return std::ranges::find(kCommHooks, name) != kCommHooks.end(); }

void require_comm_hook(std::string_view name) {
  if (!is_comm_hook(name))
    throw ConfigError("MU157", "unknown comm_hook '" + std::string(name) + "'" + known_ones(kCommHooks));
}

}  // namespace muster::parallel

namespace muster {
namespace strategy {
namespace {

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
  for (const auto& word : options::foreign_words(options::Place::strategy))
    if (word.follow == options::Follow::option) known += " " + std::string(word.word);
  return known;
}

void require_size(const char* option, double value) {
  if (!(value >= 0))
    throw ConfigError("MU347", std::string("the option ") + option + " of replicated training is " +
                                   std::to_string(value) + "; give a number of MiB from 0");
}

}  // namespace

const options::ForeignWord* find_strategy_word(std::string_view name) {
  return options::find_foreign_word(options::Place::strategy, lower_case(std::string(name)));
}

}  // namespace strategy

using Options = std::variant<std::monostate, DDP, FSDP>;

Strategy::Strategy(DDP options) : name_("ddp") {
  strategy::require_size("bucket_cap_mb", options.bucket_cap_mb);
  strategy::require_size("first_bucket_mb", options.first_bucket_mb);
  parallel::require_comm_hook(options.comm_hook);
  options_ = std::make_shared<const Options>(std::move(options));
}
Strategy::Strategy(FSDP options)
    : name_(strategy::fitting_name(options)), options_(std::make_shared<const Options>(std::move(options))) {}

Strategy::Strategy(std::string_view name) {
  const auto* word = strategy::find_strategy_word(name);
  if (word && word->follow == options::Follow::refused)
    throw ConfigError("MU197", "the strategy '" + std::string(name) + "' is not supported: " + std::string(word->text));
  const auto wanted = word ? std::string(word->text) : lower_case(std::string(name));
  for (const auto entry : kNames)
    if (entry == wanted) name_ = entry;
  if (name_.empty()) throw ConfigError("MU170", "unknown strategy '" + std::string(name) + "'" + strategy::choices());
  FSDP sharding;
  sharding.reshard_after_forward = !word || word->also != strategy::kKeepsParameters;
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
