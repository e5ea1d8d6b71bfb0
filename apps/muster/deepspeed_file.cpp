#include "deepspeed_file.h"

#include "accelerate_file.h"
#include "muster/base/detail/file_values.h"
#include "muster/base/detail/letter_case.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

using options::FileValue;
using options::Found;
using options::RawOptions;

constexpr const char* kFileOfDeepspeed = "deepspeed_config_file";

/// Keys of the file, and the names of Accelerate that mean the same.
constexpr std::pair<std::string_view, const char*> kSameAs[] = {
    {"zero_optimization.stage", "zero_stage"},
    {"zero_optimization.offload_optimizer.device", "offload_optimizer_device"},
    {"zero_optimization.offload_param.device", "offload_param_device"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"gradient_clipping", "gradient_clipping"}};

/// What only the program can make, or what would be another training.
constexpr std::pair<std::string_view, std::string_view> kRefusedKeys[] = {
    {"optimizer.", "the program makes its optimizer; take the section out"},
    {"scheduler.", "the program makes its scheduler; take the section out"},
    {"zero_optimization.zero_hpz_partition_size", "write --strategy hsdp instead"},
    {"zero_optimization.mics_shard_size", "write --fsdp-shard-group-size instead"}};

void set_unless_flag(RawOptions& accelerate, const std::string& name, Found found) {
  const auto given = accelerate.find(name);
  if (given == accelerate.end() || !is_flag(given->second)) accelerate[name] = std::move(found);
}

void take_deepspeed_value(const FileValue& value, RawOptions& accelerate) {
  const auto word = lower_case(value.found.text);
  const bool idle = value.form == options::ValueForm::none || word == "1" || word == "-1" || word == "auto";
  for (const auto& [begin, instead] : kRefusedKeys)
    if (value.key.starts_with(begin) && (!idle || begin.ends_with(".")))
      throw ConfigError("MU481", value.found.place + ": " + value.key +
                                     " is given, which Muster does not follow: " + std::string(instead));
  for (const auto& [key, name] : kSameAs)
    if (value.key == key && word != "auto") set_unless_flag(accelerate, name, value.found);
  for (const auto& [key, precision] : {std::pair{"bf16.enabled", "bf16"}, std::pair{"fp16.enabled", "fp16"}})
    if (value.key == key && word == "true")
      set_unless_flag(accelerate, "mixed_precision", {precision, value.found.place + ": " + key});
}

}  // namespace

bool has_deepspeed_file(const RawOptions& accelerate) {
  const auto file = accelerate.find(kFileOfDeepspeed);
  if (file == accelerate.end() || lower_case(file->second.text) == "none") return false;
  const auto type = accelerate.find("distributed_type"), flag = accelerate.find("use_deepspeed");
  return (type != accelerate.end() && lower_case(type->second.text) == "deepspeed") ||
         (flag != accelerate.end() && lower_case(flag->second.text) == "true");
}

RawOptions with_deepspeed_file(RawOptions accelerate) {
  const auto path = accelerate.at(kFileOfDeepspeed).text;
  accelerate.erase(kFileOfDeepspeed);
  for (const auto& value : options::read_file_values(path)) take_deepspeed_value(value, accelerate);
  if (!accelerate.contains("zero_stage")) accelerate["zero_stage"] = {"0", path};
  return accelerate;
}

}  // namespace muster::cli
