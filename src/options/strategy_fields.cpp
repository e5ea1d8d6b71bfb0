#include "options/strategy_fields.h"

#include <cctype>

#include "base/options_text.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "options/strategy_request.h"

namespace muster {

template <>
struct options::Value<parallel::ShardStage> {
  static constexpr const char* kType = "one of none, optimizer, gradients, full";
  static constexpr std::string_view kWords[] = {"none", "optimizer", "gradients", "full"};
  static std::string read(const std::string& text, parallel::ShardStage& value) {
    const auto* found = std::ranges::find(kWords, text);
    if (found == std::end(kWords)) return "none, optimizer, gradients or full";
    value = static_cast<parallel::ShardStage>(found - kWords);
    return "";
  }
  static std::string write(const parallel::ShardStage& value) {
    return std::string(kWords[static_cast<size_t>(value)]);
  }
};

/// Any name is accepted here and checked when a model is sharded.
template <>
struct options::Value<DtypeName> {
  static constexpr const char* kType = "dtype";
  static std::string read(const std::string& text, DtypeName& value) {
    value = text;
    return "";
  }
  static std::string write(const DtypeName& value) { return value.text(); }
};

template <>
struct options::Value<parallel::ReshardAfterForward> {
  static constexpr const char* kType = "true, false or a number of ranks";
  static std::string read(const std::string& text, parallel::ReshardAfterForward& value) {
    if (const auto frees = read_bool(text)) value = *frees;
    else if (const auto ranks = parse_number<int>(text); ranks && *ranks > 1) value = *ranks;
    else return kType;
    return "";
  }
  static std::string write(const parallel::ReshardAfterForward& value) {
    return value.ranks() > 1 ? std::to_string(value.ranks()) : Value<bool>::write(static_cast<bool>(value));
  }
};

template <>
struct options::Value<ActivationCheckpointing> {
  static constexpr const char* kType = "true, false, or classes of blocks";
  static std::string read(const std::string& text, ActivationCheckpointing& value) {
    if (const auto on = read_bool(text)) {
      value = *on;
      return "";
    }
    std::vector<std::string> blocks;
    auto unreadable = Value<std::vector<std::string>>::read(text, blocks);
    value = std::move(blocks);
    return unreadable;
  }
  static std::string write(const ActivationCheckpointing& value) {
    const auto& blocks = value.options().blocks;
    if (blocks.empty() || blocks == std::vector<std::string>{"auto"}) return Value<bool>::write(!blocks.empty());
    return Value<std::vector<std::string>>::write(blocks);
  }
};

namespace strategy {
namespace {

/// The value of the last field must pass this check, before any process starts. `wanted` says in an error what does.
void require(options::OptionsOf<parallel::DdpOptions>& made, bool (*check)(const parallel::DdpOptions&),
             std::string wanted) {
  auto& read = made.options.back().read;
  read = [check, wanted = std::move(wanted), read](parallel::DdpOptions& options, const std::string& text) {
    const auto unreadable = read(options, text);
    return unreadable.empty() && !check(options) ? wanted : unreadable;
  };
}

}  // namespace

const options::Table<parallel::ShardedOptions>& sharded_table() {
  static const options::Table<parallel::ShardedOptions> table = [] {
    options::OptionsOf<parallel::ShardedOptions> made{.prefix = "fsdp."};
    made.add(MUSTER_FIELD(activation_checkpointing),
             "backward makes the activations of the units, or of blocks of these classes, again",
             "RecomputeSharding.TheStrategyMaySayIt");
    made.add(MUSTER_FIELD(auto_wrap),
             "if nothing else defines units: make units of the repeated blocks and of layers as large as one",
             "Units.FindsTheLayersOfAnEncoderAndLeavesTheRestToTheRoot");
    made.add(MUSTER_FIELD(buffer_dtype), "dtype in which floating buffers are used",
             "MixedDtypes.WorkWithNormsAndBuffersAndAreSavedAsBuilt");
    made.add(MUSTER_FIELD(cast_forward_inputs), "with param_dtype: floating inputs of the model are converted to it",
             "MixedDtypes.LeaveInputsAloneWhereTheyAreToldTo");
    made.add(MUSTER_FIELD(ignored_modules), "submodules that stay whole, by name or regular expression",
             "IgnoredModules.StayWholeAndAreSavedWithTheOthers");
    made.add(MUSTER_FIELD(limit_gathered_mb), "prefetch units as long as no more than this is gathered",
             "ShardedCosts.GathersTheNextUnitAheadAndMoreUnderALimit", {.unit = "MiB"});
    made.add(MUSTER_FIELD(one_copy_per_host),
             "ranks of one host have one copy of the full parameters in common, where they share memory",
             "OneCopy.IsHeldOnceAndNothingIsGathered");
    made.add(MUSTER_FIELD(output_dtype), "dtype that floating outputs of the model are converted to",
             "MixedDtypes.WorkWithNormsAndBuffersAndAreSavedAsBuilt");
    made.add(MUSTER_FIELD(param_dtype), "dtype in which parameters are gathered and used",
             "ShardedStages.UsesLowPrecisionAndUpdatesInTheDtypeBuilt");
    made.add(MUSTER_FIELD(predivide_factor), "gradients are divided by this before they are summed",
             "ShardedSettings.ReadsOptions");
    made.add(MUSTER_FIELD(reduce_dtype), "dtype in which gradients are summed", "ShardedSettings.ReadsOptions");
    made.add(MUSTER_FIELD(replicas), "required number of shard groups; 0: as many as the ranks make",
             "Strategies.ShardGroupsMustDivideTheWorld");
    made.add(MUSTER_FIELD(reshard_after_forward),
             "free parameters after forward and gather them again in backward; a number: keep them among so many "
             "neighbours meanwhile",
             "ShardedCosts.SendsTheElementsOfTheTable");
    made.add(MUSTER_FIELD(shard_group_size), "shard over groups of so many ranks; -1: those of a node, 0: all",
             "HybridSharding.EqualsReplicatedTrainingAndIsSavedLikeIt");
    made.add(MUSTER_FIELD(stage), "what is sharded", "ShardedCosts.HoldsTheBytesOfTheFormulas");
    made.add(MUSTER_FIELD(unit_classes), "submodules of these classes are units", "UnitBoundaries.ByClassName");
    made.add(MUSTER_FIELD(unit_min_elements), "submodules of at least so many elements are units",
             "UnitBoundaries.BySizeFromInsideOut");
    made.add(MUSTER_FIELD(unit_names), "these submodules are units, by name or regular expression",
             "UnitBoundaries.ByNameOrExpression");
    made.add(MUSTER_FIELD(unit_predicate), "submodules for which this function is true are units",
             "UnitBoundaries.ByPredicate");
    made.add(MUSTER_FIELD(unit_types), "submodules of exactly these C++ types are units", "UnitBoundaries.ByType");
    return std::move(made).table();
  }();
  return table;
}

const options::Table<parallel::DdpOptions>& replicated_table() {
  static const options::Table<parallel::DdpOptions> table = [] {
    options::OptionsOf<parallel::DdpOptions> made{.prefix = "ddp."};
    made.add(MUSTER_FIELD(broadcast_buffers), "buffers get the values of the main process at the end of each step",
             "ReplicatedModel.BuffersComeFromRankZeroInOneMessage");
    made.add(MUSTER_FIELD(bucket_cap_mb), "gradients are communicated in buckets of about this size",
             "ReplicatedModel.CommunicationOverlapsBackward", {.unit = "MiB"});
    require(
        made, [](auto& o) { return o.bucket_cap_mb >= 0; }, "a number from 0");
    made.add(MUSTER_FIELD(comm_hook), "how gradients are communicated: none, fp16, bf16 or powersgd",
             "CommHook.CastsHalveTheBytesAndKeepTheGradient", {.aliases = {"ddp_comm_hook"}});
    require(
        made, [](auto& o) { return parallel::is_comm_hook(o.comm_hook); }, "one of " + joined(parallel::kCommHooks));
    made.add(MUSTER_FIELD(custom_hook), "a custom communication hook", "CommHook.TakesTheUsersOwn");
    made.add(MUSTER_FIELD(find_unused_parameters), "parameters may get no gradient in a step",
             "ReplicatedModel.UnusedParametersMayBeAllowed");
    made.add(MUSTER_FIELD(first_bucket_mb), "size of the first bucket", "ReplicatedModel.CommunicationOverlapsBackward",
             {.unit = "MiB"});
    require(
        made, [](auto& o) { return o.first_bucket_mb >= 0; }, "a number from 0");
    made.add(MUSTER_FIELD(power_sgd.min_compression_rate),
             "a gradient is compressed if that makes it smaller by more than this factor",
             "CommHook.PowerSgdCompressesOnlyWhatPays", {.aliases = {"min_compression_rate"}});
    made.add(MUSTER_FIELD(power_sgd.rank), "columns of the two factors", "CommHook.PowerSgdIsThatOfThePaper",
             {.aliases = {"matrix_approximation_rank"}});
    made.add(MUSTER_FIELD(power_sgd.seed), "seed of the first factors", "CommHook.PowerSgdIsThatOfThePaper",
             {.aliases = {"random_seed"}});
    made.add(MUSTER_FIELD(power_sgd.start_iteration), "full gradients are communicated in backwards before this one",
             "CommHook.PowerSgdGoesOnAfterALoad", {.aliases = {"start_powerSGD_iter"}});
    made.add(MUSTER_FIELD(power_sgd.use_error_feedback), "the compression error is added to the next gradient",
             "CommHook.PowerSgdIsThatOfThePaper", {.aliases = {"use_error_feedback"}});
    made.add(MUSTER_FIELD(power_sgd.warm_start), "each factorization starts from the previous one",
             "CommHook.PowerSgdIsThatOfThePaper", {.aliases = {"warm_start"}});
    made.add(MUSTER_FIELD(static_graph), "the same parameters get gradients in every step",
             "ReplicatedModel.StaticGraphLearnsTheSetAndHoldsToIt");
    return std::move(made).table();
  }();
  return table;
}

std::map<std::string, std::string> written_fields(const Strategy& strategy) {
  std::map<std::string, std::string> texts;
  const auto write = [&](const std::string& prefix, const auto& table, const auto* values) {
    if (!values) return;
    for (const auto& field : table.options)
      if (!field.description.code_only) texts[prefix + field.description.name] = field.write(*values);
  };
  write("ddp.", replicated_table(), std::get_if<DDP>(&strategy.options()));
  write("fsdp.", sharded_table(), strategy.sharding());
  return texts;
}

namespace {

using options::Follow;
using options::ForeignWord;
using options::Found;
using options::Place;
using options::RawOptions;

[[noreturn]] void refuse_field(const Found& found, std::string_view instead) {
  throw ConfigError("MU197", found.place + " is '" + found.text + "', which is not supported: " + std::string(instead));
}

/// A field of another tool, all fields of its source by the names there, and ours, which it may set.
struct TakenField {
  const Found& found;
  const RawOptions& others;
  RawOptions& ours;
  void set(const char* name, std::string text) const { ours[name] = {std::move(text), found.place}; }
};

/// Handles the words of PyTorch's ShardingStrategy, or Accelerate's numbers for them.
void take_sharding_strategy(const TakenField& field) {
  static constexpr std::string_view kWords[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                                "HYBRID_SHARD_ZERO2"};
  auto word = upper_case(field.found.text);
  if (word.size() == 1 && word[0] >= '1' && word[0] <= '5') word = kWords[word[0] - '1'];
  const auto* alias = find_strategy_word(word);
  const bool is_word = word == "_HYBRID_SHARD_ZERO2" || std::ranges::find(kWords, word) != std::end(kWords);
  if (!alias || !is_word)
    options::refuse({.name = "sharding_strategy"}, field.found,
                    "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2 or a number from 1 to 5");
  if (alias->text == "ddp") field.set("stage", "none");
  if (alias->text == "hsdp") field.set("shard_group_size", "-1");
  if (alias->also == kKeepsParameters) field.set("reshard_after_forward", "false");
}

void take_reshard(const TakenField& field) {
  if (find_strategy_word(field.found.text)) return take_sharding_strategy(field);
  field.set("reshard_after_forward", lower_case(field.found.text));
}

void take_wrap_policy(const TakenField& field) {
  const auto word = upper_case(field.found.text);
  if (word == "NO_WRAP") {
    field.set("auto_wrap", "false");
  } else if (word == "SIZE_BASED_WRAP") {
    const auto size = field.others.find("min_num_params");
    field.ours["unit_min_elements"] = size == field.others.end() ? Found{"100000000", field.found.place} : size->second;
  } else if (word == "TRANSFORMER_BASED_WRAP") {
    // Without classes Accelerate uses the model's own list of block classes; here, repeated modules are found instead.
    if (const auto classes = field.others.find("transformer_cls_names_to_wrap"); classes != field.others.end())
      field.ours["unit_classes"] = classes->second;
  } else {
    options::refuse({.name = "auto_wrap_policy"}, field.found, "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP");
  }
}

/// Accelerate sets these for every policy; they apply only with the policy they belong to, or without any policy.
void take_for_policy(const TakenField& field, const char* ours) {
  if (!field.others.contains("auto_wrap_policy")) field.ours[ours] = field.found;
}

void take_state_dict_type(const TakenField& field) {
  auto word = upper_case(field.found.text);
  if (word.ends_with("_STATE_DICT")) word.resize(word.size() - 11);
  if (word == "LOCAL")
    refuse_field(
        field.found,
        "save_state() writes each rank's part, which loads on any number of ranks, and save_model() full weights");
  if (word != "FULL" && word != "SHARDED")
    options::refuse({.name = "state_dict_type"}, field.found, "FULL_STATE_DICT or SHARDED_STATE_DICT");
}

void take_mixed_precision(const TakenField& field) {
  auto word = lower_case(field.found.text);
  if (const auto on = read_bool(word)) word = *on ? "f16" : "no";  // fairscale's boolean means float16
  if (word == "fp16") word = "f16";
  for (const char* ours : {"buffer_dtype", "param_dtype", "reduce_dtype"}) field.set(ours, word == "no" ? "" : word);
}

/// Handles a mesh such as "(2, 4)": replicate over 2, shard over 4.
void take_device_mesh(const TakenField& field) {
  std::vector<std::string> numbers(1);
  for (const char c : field.found.text) {
    if (std::isdigit(static_cast<unsigned char>(c))) numbers.back() += c;
    else if (c == ',' || c == 'x') numbers.emplace_back();
    else if (c != '(' && c != ')' && c != ' ') numbers.emplace_back(), numbers.emplace_back();
  }
  if (numbers.size() != 2 || numbers[0].empty() || numbers[1].empty())
    options::refuse({.name = "device_mesh"}, field.found, "two sizes, replicate and shard, such as 2x4,");
  field.set("replicas", numbers[0]);
  field.set("shard_group_size", numbers[1]);
}

void take_prefetch(const TakenField& field) {
  const auto word = upper_case(field.found.text);
  if (word == "BACKWARD_POST" || word == "NO_PREFETCH" || word == "NONE" || word == "2" || word == "3")
    refuse_field(
        field.found,
        "units are gathered ahead in the order in which they were used; limit_gathered_mb bounds their memory");
  if (word != "BACKWARD_PRE" && word != "1")
    options::refuse({.name = "backward_prefetch"}, field.found, "BACKWARD_PRE");
}

/// Muster's name of a dtype: "f16" for "torch.float16".
std::string dtype_of(const Found& found) {
  auto word = lower_case(found.text);
  if (word.starts_with("torch.")) word.erase(0, 6);
  if (word == "float16" || word == "half" || word == "fp16") return "f16";
  if (word == "bfloat16") return "bf16";
  if (word == "float32" || word == "float" || word == "fp32") return "f32";
  return word;
}

/// Sets one of our fields where the value is true.
void take_switch(const TakenField& field, const char* ours, const char* text) {
  bool value = false;
  if (const auto wanted = options::Value<bool>::read(field.found.text, value); !wanted.empty())
    options::refuse({.name = field.found.place}, field.found, wanted);
  if (value) field.set(ours, text);
}

/// What a word means whose meaning depends on its value or on the other fields of its source.
using Take = void (*)(const TakenField& field);
const std::map<std::string_view, Take>& takes() {
  static const std::map<std::string_view, Take> all{
      {"auto_wrap_policy", take_wrap_policy},
      {"backward_prefetch", take_prefetch},
      {"compute_dtype", [](auto& field) { field.set("param_dtype", dtype_of(field.found)); }},
      {"device_mesh", take_device_mesh},
      {"force_input_to_fp32", [](auto& field) { take_switch(field, "cast_forward_inputs", "false"); }},
      {"fp32_reduce_scatter", [](auto& field) { take_switch(field, "reduce_dtype", "f32"); }},
      {"mesh", take_device_mesh},
      {"min_num_params", [](auto& field) { take_for_policy(field, "unit_min_elements"); }},
      {"mixed_precision", take_mixed_precision},
      {"mixed_precision_policy", take_mixed_precision},
      {"mp_policy", take_mixed_precision},
      {"reduce_fp16", [](auto& field) { take_switch(field, "reduce_dtype", "f16"); }},
      {"reshard_after_forward", take_reshard},
      {"sharding_strategy", take_sharding_strategy},
      {"state_dict_type", take_state_dict_type},
      {"transformer_cls_names_to_wrap", [](auto& field) { take_for_policy(field, "unit_classes"); }},
  };
  return all;
}

}  // namespace

void take_sharding_word(const ForeignWord& word, const Found& found, const RawOptions& others, RawOptions& ours) {
  if (word.follow == Follow::in_code) return takes().at(word.word)({found, others, ours});
  if (word.follow == Follow::ignored || options::asks_for_nothing(word, found.text)) return;
  if (word.follow == Follow::refused) refuse_field(found, word.text);
  ours[std::string(word.text)] = found;
}

}  // namespace strategy
}  // namespace muster
