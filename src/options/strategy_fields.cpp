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
  static constexpr std::array<const char*, 4> kWords{"none", "optimizer", "gradients", "full"};
  static std::string read(const std::string& text, parallel::ShardStage& value) {
    for (size_t i = 0; i < kWords.size(); ++i)
      if (text == kWords[i]) {
        value = static_cast<parallel::ShardStage>(i);
        return "";
      }
    return "none, optimizer, gradients or full";
  }
  static std::string write(const parallel::ShardStage& value) { return kWords.at(static_cast<size_t>(value)); }
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
    bool frees = true;
    int ranks = 0;
    if (Value<bool>::read(text, frees).empty()) value = frees;
    else if (Value<int>::read(text, ranks).empty() && ranks > 1) value = ranks;
    else return "true, false or a number of ranks";
    return "";
  }
  static std::string write(const parallel::ReshardAfterForward& value) {
    return value.ranks() > 1 ? std::to_string(value.ranks()) : Value<bool>::write(static_cast<bool>(value));
  }
};

namespace strategy {
namespace {

template <class T>
ShardedField field(const char* name, T parallel::ShardedOptions::*member, const char* help, const char* tested_by,
                   const char* unit = "") {
  auto variable = options::variable_of(std::string("fsdp.") + name);
  return options::option(name, member,
                         {.help = help, .unit = unit, .variable = std::move(variable), .tested_by = tested_by});
}

template <class Fields>
std::vector<options::Description> descriptions_of(const Fields& fields) {
  std::vector<options::Description> all;
  for (const auto& one : fields) all.push_back(one.description);
  return all;
}

}  // namespace

const std::vector<ShardedField>& sharded_fields() {
  using Options = parallel::ShardedOptions;
  static const std::vector<ShardedField> fields{
      field("auto_wrap", &Options::auto_wrap,
            "if nothing else defines units: make units of the repeated blocks and of layers as large as one",
            "Units.FindsTheLayersOfAnEncoderAndLeavesTheRestToTheRoot"),
      field("buffer_dtype", &Options::buffer_dtype, "dtype in which floating buffers are used",
            "MixedDtypes.WorkWithNormsAndBuffersAndAreSavedAsBuilt"),
      field("cast_forward_inputs", &Options::cast_forward_inputs,
            "with param_dtype: floating inputs of the model are converted to it",
            "MixedDtypes.LeaveInputsAloneWhereTheyAreToldTo"),
      field("ignored_modules", &Options::ignored_modules, "submodules that stay whole, by name or regular expression",
            "IgnoredModules.StayWholeAndAreSavedWithTheOthers"),
      field("limit_gathered_mb", &Options::limit_gathered_mb, "prefetch units as long as no more than this is gathered",
            "ShardedCosts.GathersTheNextUnitAheadAndMoreUnderALimit", "MiB"),
      field("one_copy_per_host", &Options::one_copy_per_host,
            "ranks of one host have one copy of the full parameters in common, where they share memory",
            "OneCopy.IsHeldOnceAndNothingIsGathered"),
      field("output_dtype", &Options::output_dtype, "dtype that floating outputs of the model are converted to",
            "MixedDtypes.WorkWithNormsAndBuffersAndAreSavedAsBuilt"),
      field("param_dtype", &Options::param_dtype, "dtype in which parameters are gathered and used",
            "ShardedStages.UsesLowPrecisionAndUpdatesInTheDtypeBuilt"),
      field("predivide_factor", &Options::predivide_factor, "gradients are divided by this before they are summed",
            "ShardedSettings.ReadsOptions"),
      field("reduce_dtype", &Options::reduce_dtype, "dtype in which gradients are summed",
            "ShardedSettings.ReadsOptions"),
      field("replicas", &Options::replicas, "required number of shard groups; 0: as many as the ranks make",
            "Strategies.ShardGroupsMustDivideTheWorld"),
      field("reshard_after_forward", &Options::reshard_after_forward,
            "free parameters after forward and gather them again in backward; a number: keep them among so many "
            "neighbours meanwhile",
            "ShardedCosts.SendsTheElementsOfTheTable"),
      field("shard_group_size", &Options::shard_group_size,
            "shard over groups of so many ranks; -1: those of a node, 0: all",
            "HybridSharding.EqualsReplicatedTrainingAndIsSavedLikeIt"),
      field("stage", &Options::stage, "what is sharded", "ShardedCosts.HoldsTheBytesOfTheFormulas"),
      field("unit_classes", &Options::unit_classes, "submodules of these classes are units",
            "UnitBoundaries.ByClassName"),
      field("unit_min_elements", &Options::unit_min_elements, "submodules of at least so many elements are units",
            "UnitBoundaries.BySizeFromInsideOut"),
      field("unit_names", &Options::unit_names, "these submodules are units, by name or regular expression",
            "UnitBoundaries.ByNameOrExpression"),
      field("unit_predicate", &Options::unit_predicate, "submodules for which this function is true are units",
            "UnitBoundaries.ByPredicate"),
      field("unit_types", &Options::unit_types, "submodules of exactly these C++ types are units",
            "UnitBoundaries.ByType"),
  };
  return fields;
}

namespace {

template <class Get>
ReplicatedField field(std::string name, Get get, options::Description description) {
  description.variable = options::variable_of("ddp." + name);
  return options::option_at<parallel::DdpOptions>(std::move(name), get, std::move(description));
}

/// A field whose value must pass a check, before any process starts. `wanted` says in an error what does.
template <class Get, class Check>
ReplicatedField checked_field(std::string name, Get get, options::Description description, Check check,
                              std::string wanted) {
  auto checked = field(std::move(name), get, std::move(description));
  checked.read = [get, check, wanted = std::move(wanted), read = checked.read](parallel::DdpOptions& options,
                                                                               const std::string& text) {
    const auto unreadable = read(options, text);
    return unreadable.empty() && !check(get(options)) ? wanted : unreadable;
  };
  return checked;
}

/// A field with a size in MiB; 0 gives every parameter its own bucket.
template <class Get>
ReplicatedField size_field(std::string name, Get get, options::Description description) {
  return checked_field(
      std::move(name), get, std::move(description), [](double size) { return size >= 0; }, "a number from 0");
}

}  // namespace

const std::vector<ReplicatedField>& replicated_fields() {
  static const std::vector<ReplicatedField> fields{
      field("broadcast_buffers", [](auto& o) -> auto& { return o.broadcast_buffers; },
            {.help = "buffers get the values of the main process at the end of each step",
             .tested_by = "ReplicatedModel.BuffersComeFromRankZeroInOneMessage"}),
      size_field("bucket_cap_mb", [](auto& o) -> auto& { return o.bucket_cap_mb; },
                 {.help = "gradients are communicated in buckets of about this size",
                  .unit = "MiB",
                  .tested_by = "ReplicatedModel.CommunicationOverlapsBackward"}),
      checked_field(
          "comm_hook", [](auto& o) -> auto& { return o.comm_hook; },
          {.help = "how gradients are communicated: none, fp16, bf16 or powersgd",
           .aliases = {"ddp_comm_hook"},
           .tested_by = "CommHook.CastsHalveTheBytesAndKeepTheGradient"},
          parallel::is_comm_hook, "one of " + joined(parallel::kCommHooks)),
      field("custom_hook", [](auto& o) -> auto& { return o.custom_hook; },
            {.help = "a custom communication hook", .tested_by = "CommHook.TakesTheUsersOwn"}),
      field("find_unused_parameters", [](auto& o) -> auto& { return o.find_unused_parameters; },
            {.help = "parameters may get no gradient in a step",
             .tested_by = "ReplicatedModel.UnusedParametersMayBeAllowed"}),
      size_field("first_bucket_mb", [](auto& o) -> auto& { return o.first_bucket_mb; },
                 {.help = "size of the first bucket",
                  .unit = "MiB",
                  .tested_by = "ReplicatedModel.CommunicationOverlapsBackward"}),
      field("power_sgd.min_compression_rate", [](auto& o) -> auto& { return o.power_sgd.min_compression_rate; },
            {.help = "a gradient is compressed if that makes it smaller by more than this factor",
             .aliases = {"min_compression_rate"},
             .tested_by = "CommHook.PowerSgdCompressesOnlyWhatPays"}),
      field("power_sgd.rank", [](auto& o) -> auto& { return o.power_sgd.rank; },
            {.help = "columns of the two factors",
             .aliases = {"matrix_approximation_rank"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("power_sgd.seed", [](auto& o) -> auto& { return o.power_sgd.seed; },
            {.help = "seed of the first factors",
             .aliases = {"random_seed"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("power_sgd.start_iteration", [](auto& o) -> auto& { return o.power_sgd.start_iteration; },
            {.help = "full gradients are communicated in backwards before this one",
             .aliases = {"start_powerSGD_iter"},
             .tested_by = "CommHook.PowerSgdGoesOnAfterALoad"}),
      field("power_sgd.use_error_feedback", [](auto& o) -> auto& { return o.power_sgd.use_error_feedback; },
            {.help = "the compression error is added to the next gradient",
             .aliases = {"use_error_feedback"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("power_sgd.warm_start", [](auto& o) -> auto& { return o.power_sgd.warm_start; },
            {.help = "each factorization starts from the previous one",
             .aliases = {"warm_start"},
             .tested_by = "CommHook.PowerSgdIsThatOfThePaper"}),
      field("static_graph", [](auto& o) -> auto& { return o.static_graph; },
            {.help = "the same parameters get gradients in every step",
             .tested_by = "ReplicatedModel.StaticGraphLearnsTheSetAndHoldsToIt"}),
  };
  return fields;
}

std::vector<options::Description> sharded_option_descriptions() { return descriptions_of(sharded_fields()); }
std::vector<options::Description> replicated_option_descriptions() { return descriptions_of(replicated_fields()); }

std::map<std::string, std::string> written_fields(const Strategy& strategy) {
  std::map<std::string, std::string> texts;
  const auto write = [&](const std::string& prefix, const auto& fields, const auto* values) {
    if (!values) return;
    for (const auto& field : fields)
      if (!field.description.code_only) texts[prefix + field.description.name] = field.write(*values);
  };
  write("ddp.", replicated_fields(), std::get_if<DDP>(&strategy.options()));
  write("fsdp.", sharded_fields(), strategy.sharding());
  return texts;
}

namespace {

using options::Follow;
using options::ForeignWord;
using options::Found;
using options::Place;

[[noreturn]] void refuse_field(const Found& found, std::string_view instead) {
  throw ConfigError("MU197", found.place + " is '" + found.text + "', which is not supported: " + std::string(instead));
}

bool read_switch(const Found& found) {
  bool value = false;
  if (const auto wanted = options::Value<bool>::read(found.text, value); !wanted.empty())
    options::refuse({.name = found.place}, found, wanted);
  return value;
}

/// Handles the words of PyTorch's ShardingStrategy, or Accelerate's numbers for them.
void take_sharding_strategy(const Found& found, const FieldTexts&, FieldTexts& ours) {
  static constexpr std::string_view kWords[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                                "HYBRID_SHARD_ZERO2"};
  auto word = upper_case(found.text);
  if (word.size() == 1 && word[0] >= '1' && word[0] <= '5') word = kWords[word[0] - '1'];
  const auto* alias = find_strategy_word(word);
  const bool is_word =
      word == "_HYBRID_SHARD_ZERO2" || std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
  if (!alias || !is_word)
    options::refuse({.name = "sharding_strategy"}, found,
                    "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2 or a number from 1 to 5");
  if (alias->text == "ddp") ours["stage"] = {"none", found.place};
  if (alias->text == "hsdp") ours["shard_group_size"] = {"-1", found.place};
  if (alias->also == kKeepsParameters) ours["reshard_after_forward"] = {"false", found.place};
}

void take_reshard(const Found& found, const FieldTexts& others, FieldTexts& ours) {
  if (find_strategy_word(found.text)) return take_sharding_strategy(found, others, ours);
  ours["reshard_after_forward"] = {lower_case(found.text), found.place};
}

void take_wrap_policy(const Found& found, const FieldTexts& others, FieldTexts& ours) {
  const auto word = upper_case(found.text);
  if (word == "NO_WRAP") {
    ours["auto_wrap"] = {"false", found.place};
  } else if (word == "SIZE_BASED_WRAP") {
    const auto size = others.find("min_num_params");
    ours["unit_min_elements"] = size == others.end() ? Found{"100000000", found.place} : size->second;
  } else if (word == "TRANSFORMER_BASED_WRAP") {
    // Without classes Accelerate uses the model's own list of block classes; here, repeated modules are found instead.
    if (const auto classes = others.find("transformer_cls_names_to_wrap"); classes != others.end())
      ours["unit_classes"] = classes->second;
  } else {
    options::refuse({.name = "auto_wrap_policy"}, found, "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP");
  }
}

/// Accelerate sets these for every policy; they apply only with the policy they belong to, or without any policy.
void take_size(const Found& found, const FieldTexts& others, FieldTexts& ours) {
  if (!others.contains("auto_wrap_policy")) ours["unit_min_elements"] = found;
}
void take_classes(const Found& found, const FieldTexts& others, FieldTexts& ours) {
  if (!others.contains("auto_wrap_policy")) ours["unit_classes"] = found;
}

void take_state_dict_type(const Found& found, const FieldTexts&, FieldTexts&) {
  auto word = upper_case(found.text);
  if (word.ends_with("_STATE_DICT")) word.resize(word.size() - 11);
  if (word == "LOCAL")
    refuse_field(
        found,
        "save_state() writes each rank's part, which loads on any number of ranks, and save_model() full weights");
  if (word != "FULL" && word != "SHARDED")
    options::refuse({.name = "state_dict_type"}, found, "FULL_STATE_DICT or SHARDED_STATE_DICT");
}

void take_mixed_precision(const Found& found, const FieldTexts&, FieldTexts& ours) {
  auto word = lower_case(found.text);
  if (const auto on = read_bool(word)) word = *on ? "f16" : "no";  // fairscale's boolean means float16
  if (word == "fp16") word = "f16";
  ours["buffer_dtype"] = ours["param_dtype"] = ours["reduce_dtype"] = {word == "no" ? "" : word, found.place};
}

/// Handles a mesh such as "(2, 4)": replicate over 2, shard over 4.
void take_device_mesh(const Found& found, const FieldTexts&, FieldTexts& ours) {
  std::vector<std::string> numbers(1);
  for (const char c : found.text) {
    if (std::isdigit(static_cast<unsigned char>(c))) numbers.back() += c;
    else if (c == ',' || c == 'x') numbers.emplace_back();
    else if (c != '(' && c != ')' && c != ' ') numbers.emplace_back(), numbers.emplace_back();
  }
  if (numbers.size() != 2 || numbers[0].empty() || numbers[1].empty())
    options::refuse({.name = "device_mesh"}, found, "two sizes, replicate and shard, such as 2x4,");
  ours["replicas"] = {numbers[0], found.place};
  ours["shard_group_size"] = {numbers[1], found.place};
}

void take_prefetch(const Found& found, const FieldTexts&, FieldTexts&) {
  const auto word = upper_case(found.text);
  if (word == "BACKWARD_POST" || word == "NO_PREFETCH" || word == "NONE" || word == "2" || word == "3")
    refuse_field(
        found, "units are gathered ahead in the order in which they were used; limit_gathered_mb bounds their memory");
  if (word != "BACKWARD_PRE" && word != "1") options::refuse({.name = "backward_prefetch"}, found, "BACKWARD_PRE");
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

void take_compute_dtype(const Found& found, const FieldTexts&, FieldTexts& ours) {
  ours["param_dtype"] = {dtype_of(found), found.place};
}
void take_fp32_sums(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (read_switch(found)) ours["reduce_dtype"] = {"f32", found.place};
}
void take_fp16_sums(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (read_switch(found)) ours["reduce_dtype"] = {"f16", found.place};
}
void take_inputs_in_fp32(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (read_switch(found)) ours["cast_forward_inputs"] = {"false", found.place};
}

/// What a word means whose meaning depends on its value or on the other fields of its source (`others`).
using Take = void (*)(const Found& found, const FieldTexts& others, FieldTexts& ours);
const std::map<std::string_view, Take>& takes() {
  static const std::map<std::string_view, Take> all{
      {"auto_wrap_policy", take_wrap_policy},
      {"backward_prefetch", take_prefetch},
      {"compute_dtype", take_compute_dtype},
      {"device_mesh", take_device_mesh},
      {"force_input_to_fp32", take_inputs_in_fp32},
      {"fp32_reduce_scatter", take_fp32_sums},
      {"mesh", take_device_mesh},
      {"min_num_params", take_size},
      {"mixed_precision", take_mixed_precision},
      {"mixed_precision_policy", take_mixed_precision},
      {"mp_policy", take_mixed_precision},
      {"reduce_fp16", take_fp16_sums},
      {"reshard_after_forward", take_reshard},
      {"sharding_strategy", take_sharding_strategy},
      {"state_dict_type", take_state_dict_type},
      {"transformer_cls_names_to_wrap", take_classes},
  };
  return all;
}

}  // namespace

void take_sharding_word(const ForeignWord& word, const Found& found, const FieldTexts& others, FieldTexts& ours) {
  if (word.follow == Follow::in_code) return takes().at(word.word)(found, others, ours);
  if (word.follow == Follow::ignored || options::asks_for_nothing(word, found.text)) return;
  if (word.follow == Follow::refused) refuse_field(found, word.text);
  ours[std::string(word.text)] = found;
}

}  // namespace strategy
}  // namespace muster
