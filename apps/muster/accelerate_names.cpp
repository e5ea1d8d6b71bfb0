#include "accelerate_names.h"

#include <algorithm>

#include "base/text.h"

namespace muster::cli {
namespace {

/// A description of how a name is followed.
std::string followed_as(const ForeignWord& one) {
  const std::string text(one.text);
  switch (one.follow) {
    case Follow::option: return "as the option " + text;
    case Follow::sharding: return "as the field of FSDP " + text;
    case Follow::ignored:
    case Follow::warned: return "no effect: " + text;
    case Follow::refused: return "refused: " + text;
    case Follow::in_code: break;
  }
  return text;
}

/// A section of the file, and the prefix of its keys outside of it.
constexpr std::pair<std::string_view, std::string_view> kSections[] = {{"deepspeed_config", ""},
                                                                       {"dynamo_config", "dynamo_"},
                                                                       {"fp8_config", "fp8_"},
                                                                       {"fsdp_config", "fsdp_"},
                                                                       {"megatron_lm_config", "megatron_lm_"},
                                                                       {"mpirun_config", ""},
                                                                       {"parallelism_config", "parallelism_config_"}};

std::string_view section_of(const ForeignWord& one) {
  if (one.group == Group::deepspeed) return "deepspeed_config";
  if (one.word.starts_with("mpirun_")) return "mpirun_config";
  for (const auto& [section, prefix] : kSections)
    if (!prefix.empty() && one.word.starts_with(prefix)) return section;
  return "";
}

}  // namespace

const ForeignWord* find_accelerate_name(std::string_view name) {
  return options::find_foreign_word(options::Place::launch, name);
}

std::string accelerate_markdown() {
  std::string result = "| name | flag | followed as |\n|---|---|---|\n";
  for (const auto& one : options::foreign_words(options::Place::launch))
    result += "| `" + std::string(one.word) + "` | " +
              (one.group == Group::file ? "–" : "`--" + std::string(one.word) + "`") + " | " + followed_as(one) +
              " |\n";
  return result;
}

std::vector<options::Description> accelerate_flags(Group group) {
  std::vector<options::Description> flags;
  for (const auto& one : options::foreign_words(options::Place::launch)) {
    if (one.group != group || group == Group::file) continue;
    options::Description flag{.name = std::string(one.word), .is_switch = one.is_switch};
    flag.help = followed_as(one);
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::string_view title_of(Group group) {
  using enum Group;
  switch (group) {
    case general: return "Accelerate: general";
    case hardware: return "Accelerate: hardware";
    case resources: return "Accelerate: resources";
    case paradigm: return "Accelerate: paradigm";
    case distributed: return "Accelerate: distributed training";
    case mpi: return "Accelerate: MPI";
    case tpu: return "Accelerate: TPU";
    case aws: return "Accelerate: AWS";
    case deepspeed: return "Accelerate: DeepSpeed";
    case fsdp: return "Accelerate: FSDP";
    case megatron: return "Accelerate: Megatron-LM";
    case fp8: return "Accelerate: FP8";
    case parallelism: return "Accelerate: ParallelismConfig";
    case file:
    case none: break;
  }
  return "";
}

std::string variable_of_accelerate(const ForeignWord& one) {
  using enum Group;
  const auto capitals = upper_case(std::string(one.word));
  if (one.word == "zero3_init_flag") return "ACCELERATE_DEEPSPEED_ZERO3_INIT";
  if (one.word == "deepspeed_moe_layer_cls_names" || one.word == "deepspeed_config_file")
    return "ACCELERATE_" + capitals;
  if (one.word == "fsdp_transformer_layer_cls_to_wrap") return "FSDP_TRANSFORMER_CLS_TO_WRAP";
  if (one.word == "mixed_precision" || one.word == "gradient_clipping" || one.word.starts_with("dynamo_"))
    return "ACCELERATE_" + capitals;
  const bool shards = one.word.starts_with("zero") || one.word.starts_with("offload_");
  switch (one.group) {
    case paradigm:
    case fp8: return "ACCELERATE_" + capitals;
    case deepspeed: return shards ? "ACCELERATE_DEEPSPEED_" + capitals : "";
    case fsdp:
    case megatron:
    case parallelism: return capitals;
    default: return "";
  }
}

std::vector<std::string> accelerate_sections() {
  std::vector<std::string> names;
  for (const auto& [name, prefix] : kSections) names.emplace_back(name);
  return names;
}

std::vector<std::string> accelerate_keys_of(std::string_view section) {
  std::vector<std::string> keys;
  for (const auto& one : options::foreign_words(options::Place::launch))
    if (section_of(one) == section) keys.emplace_back(one.word);
  if (section.empty())
    for (auto& name : accelerate_sections()) keys.push_back(std::move(name));
  return keys;
}

std::string accelerate_name_of_key(const std::string& key) {
  const auto dot = key.find('.');
  if (dot == std::string::npos) return key;
  const auto section = key.substr(0, dot), rest = key.substr(dot + 1);
  if (section == "additional_args") return section;
  for (const auto& [name, prefix] : kSections)
    if (name == section) return rest.starts_with(prefix) ? rest : std::string(prefix) + rest;
  return key;
}

}  // namespace muster::cli
