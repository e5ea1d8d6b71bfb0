#include "options/strategy_fields.h"

#include <array>

#include "base/listing.h"
#include "base/options_text.h"
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

namespace {

template <class Fields>
std::vector<options::Description> descriptions_of(const Fields& fields) {
  std::vector<options::Description> all;
  for (const auto& one : fields) all.push_back(one.description);
  return all;
}

}  // namespace

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

}  // namespace strategy
}  // namespace muster
