#include <algorithm>
#include <cctype>
#include <string>

#include "base/spelling.h"
#include "muster/base/error.h"
#include "strategy/names.h"
#include "strategy/resolve.h"
#include "strategy/sharded_fields.h"

namespace muster::strategy {
namespace {

using options::Found;

/// Handles a switch that must stay off.
template <const char* kInstead>
void only_off(const Found& found, const FieldTexts&, FieldTexts&) {
  refuse_unless_off(found, kInstead);
}
/// Handles a field that only code can set, if it is supported at all.
template <const char* kInstead>
void never(const Found& found, const FieldTexts&, FieldTexts&) {
  refuse_field(found, kInstead);
}

constexpr char kNoOffload[] =
    "parameters and states stay on the device; shard them over more ranks, or over smaller batches";
constexpr char kNoActivationCheckpointing[] =
    "activations are kept for backward; train on smaller batches and accumulate gradients";
constexpr char kByTheRuntime[] =
    "it is chosen for the whole program: give timeout among the options of the object that prepares; the "
    "backend follows from the device";
constexpr char kByModule[] = "what stays whole is said by module: name them in ignored_modules";
constexpr char kRunsOfElements[] =
    "each rank holds a run of a unit's elements in the order of memory, whatever their shape";
constexpr char kInCode[] =
    "initialise the module before prepare(), on every rank or on rank 0 alone, whose values all ranks take";
constexpr char kNoProcessGroup[] =
    "sharded training goes over all ranks of the program; shard_group_size cuts them into groups";

/// Handles the words of PyTorch's ShardingStrategy, or Accelerate's numbers for them.
void take_sharding_strategy(const Found& found, const FieldTexts&, FieldTexts& ours) {
  static constexpr std::string_view kWords[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                                "HYBRID_SHARD_ZERO2"};
  auto word = upper_case(found.text);
  if (word.size() == 1 && word[0] >= '1' && word[0] <= '5') word = kWords[word[0] - '1'];
  const auto* alias = find_alias(word);
  const bool is_word =
      word == "_HYBRID_SHARD_ZERO2" || std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
  if (!alias || !is_word)
    options::refuse({.name = "sharding_strategy"}, found,
                    "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2 or a number from 1 to 5");
  if (alias->means == "ddp") ours["stage"] = {"none", found.place};
  if (alias->means == "hsdp") ours["shard_group_size"] = {"-1", found.place};
  if (!alias->reshard_after_forward) ours["reshard_after_forward"] = {"false", found.place};
}

void take_reshard(const Found& found, const FieldTexts& others, FieldTexts& ours) {
  if (find_alias(found.text)) return take_sharding_strategy(found, others, ours);
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

void take_ignored(const Found& found, const FieldTexts&, FieldTexts& ours) { ours["ignored_modules"] = found; }

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

void take_offload_policy(const Found& found, const FieldTexts&, FieldTexts&) {
  if (const auto word = upper_case(found.text); word != "NONE" && word != "OFFLOADPOLICY")
    refuse_field(found, kNoOffload);
}

void take_prefetch(const Found& found, const FieldTexts&, FieldTexts&) {
  const auto word = upper_case(found.text);
  if (word == "BACKWARD_POST" || word == "NO_PREFETCH" || word == "NONE" || word == "2" || word == "3")
    refuse_field(
        found, "units are gathered ahead in the order in which they were used; limit_gathered_mb bounds their memory");
  if (word != "BACKWARD_PRE" && word != "1") options::refuse({.name = "backward_prefetch"}, found, "BACKWARD_PRE");
}

/// Handles a size in Accelerate's ParallelismConfig: 1 asks for nothing.
template <const char* kField>
void take_size_of(const Found& found, const FieldTexts&, FieldTexts& ours) {
  if (found.text != "1") ours[kField] = found;
}
template <const char* kInstead>
void only_one(const Found& found, const FieldTexts&, FieldTexts&) {
  if (found.text != "1") refuse_field(found, kInstead);
}
constexpr char kReplicas[] = "replicas";
constexpr char kGroupSize[] = "shard_group_size";
constexpr char kNoLayerCuts[] = "layers and sequences are not split over ranks; leave the size at 1";

}  // namespace

void refuse_field(const Found& found, const std::string& instead) {
  throw ConfigError("MU197", found.place + " is '" + found.text + "', which is not supported: " + instead);
}

void refuse_unless_off(const Found& found, const std::string& instead) {
  if (lower_case(found.text) != "none" && read_bool(found.text) != false) refuse_field(found, instead);
}

bool read_switch(const Found& found) {
  bool value = false;
  if (const auto wanted = options::Value<bool>::read(found.text, value); !wanted.empty())
    options::refuse({.name = found.place}, found, wanted);
  return value;
}

void no_effect(const Found&, const FieldTexts&, FieldTexts&) {}

std::span<const ForeignField> python_fields() {
  static constexpr ForeignField kFields[] = {
      {"activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", "refused where true",
       only_off<kNoActivationCheckpointing>},
      {"activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "refused where true",
       only_off<kNoActivationCheckpointing>},
      {"activation_checkpointing_policy", "", "refused", never<kNoActivationCheckpointing>},
      {"auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY",
       "NO_WRAP: auto_wrap=false; SIZE_BASED_WRAP: unit_min_elements; TRANSFORMER_BASED_WRAP: unit_classes",
       take_wrap_policy},
      {"backward_prefetch", "FSDP_BACKWARD_PREFETCH", "BACKWARD_PRE, which is always so; others are refused",
       take_prefetch},
      {"cp_size", "PARALLELISM_CONFIG_CP_SIZE", "refused unless 1", only_one<kNoLayerCuts>},
      {"cpu_offload", "FSDP_OFFLOAD_PARAMS", "refused where true", only_off<kNoOffload>},
      {"cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING",
       "no effect: each rank builds the whole model in its memory", no_effect},
      {"device_mesh", "", "(replicate, shard): replicas and shard_group_size", take_device_mesh},
      {"forward_prefetch", "FSDP_FORWARD_PREFETCH", "no effect: always so", no_effect},
      {"dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "replicas, unless 1", take_size_of<kReplicas>},
      {"dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", "shard_group_size, unless 1", take_size_of<kGroupSize>},
      {"device_id", "", "no effect: each rank has one device, which the program or the launcher chooses", no_effect},
      {"fsdp_version", "FSDP_VERSION", "no effect: there is one engine", no_effect},
      {"ignored_modules", "FSDP_IGNORED_MODULES", "ignored_modules", take_ignored},
      {"ignored_states", "", "refused", never<kByModule>},
      {"limit_all_gathers", "", "no effect: limit_gathered_mb always bounds what is gathered", no_effect},
      {"mesh", "", "as device_mesh", take_device_mesh},
      {"min_num_params", "FSDP_MIN_NUM_PARAMS", "unit_min_elements, unless auto_wrap_policy says otherwise", take_size},
      {"mixed_precision", "", "as mixed_precision_policy; true (fairscale): f16", take_mixed_precision},
      {"mixed_precision_policy", "", "a dtype: param_dtype, reduce_dtype and buffer_dtype", take_mixed_precision},
      {"mp_policy", "", "as mixed_precision_policy", take_mixed_precision},
      {"offload_params", "", "refused where true", only_off<kNoOffload>},
      {"offload_policy", "", "refused unless none", take_offload_policy},
      {"optim_state_dict_config", "", "no effect: states are always written tensor by tensor", no_effect},
      {"param_init_fn", "", "refused", never<kInCode>},
      {"process_group", "", "refused", never<kNoProcessGroup>},
      {"process_group_backend", "", "refused", never<kByTheRuntime>},
      {"reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", "the same; also the words of sharding_strategy",
       take_reshard},
      {"shard_placement_fn", "", "refused", never<kRunsOfElements>},
      {"sharding_strategy", "FSDP_SHARDING_STRATEGY",
       "FULL_SHARD; SHARD_GRAD_OP: reshard_after_forward=false; NO_SHARD: stage=none; HYBRID_SHARD: "
       "shard_group_size=-1; HYBRID_SHARD_ZERO2: both",
       take_sharding_strategy},
      {"sp_size", "PARALLELISM_CONFIG_SP_SIZE", "refused unless 1", only_one<kNoLayerCuts>},
      {"state_dict_config", "", "no effect: states are always written tensor by tensor", no_effect},
      {"state_dict_type", "FSDP_STATE_DICT_TYPE",
       "no effect: save_state() is sharded and save_model() is full; LOCAL is refused", take_state_dict_type},
      {"sync_module_states", "FSDP_SYNC_MODULE_STATES", "no effect: always so", no_effect},
      {"timeout", "", "refused", never<kByTheRuntime>},
      {"tp_size", "PARALLELISM_CONFIG_TP_SIZE", "refused unless 1", only_one<kNoLayerCuts>},
      {"transformer_cls_names_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP",
       "unit_classes, unless auto_wrap_policy says otherwise", take_classes},
      {"use_orig_params", "FSDP_USE_ORIG_PARAMS", "no effect: parameters always stay your own", no_effect},
  };
  return kFields;
}

const std::vector<ForeignField>& foreign_fields() {
  static const std::vector<ForeignField> all = [] {
    std::vector<ForeignField> both(python_fields().begin(), python_fields().end());
    both.insert(both.end(), fairscale_fields().begin(), fairscale_fields().end());
    return both;
  }();
  return all;
}

std::vector<PythonField> python_sharding_fields() {
  std::vector<PythonField> all;
  for (const auto& one : foreign_fields())
    all.push_back({std::string(one.name), std::string(one.variable), std::string(one.taken_as)});
  return all;
}

}  // namespace muster::strategy
