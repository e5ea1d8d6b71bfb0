#include <algorithm>
#include <sstream>
#include <utility>

#include "accelerate_file.h"
#include "accelerate_names.h"
#include "base/options_text.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"
#include "options/strategy_request.h"

namespace muster::cli {
namespace {

using options::Found;
using options::RawOptions;

bool is_one_of(const std::string& text, std::string_view words) {
  std::istringstream stream{std::string(words)};
  for (std::string word; stream >> word;)
    if (word == lower_case(text)) return true;
  return false;
}

bool is_variable(const Found& found) { return found.place.starts_with("variable "); }

/// The place and name of a value: "a.yaml line 3: num_processes" in a file, "flag --num_processes" for a flag.
std::string named(const std::string& name, const Found& found) {
  return is_flag(found) || is_variable(found) ? found.place : found.place + ": " + name;
}

[[noreturn]] void refuse_value(const std::string& name, const Found& found, std::string_view instead) {
  const bool secret = name.starts_with("aws_");
  throw ConfigError("MU481", named(name, found) + (secret ? " is given" : " is '" + found.text + "'") +
                                 ", which Muster does not follow: " + std::string(instead));
}

const options::Description* described(const std::string& name) {
  static const auto all = [] {
    auto made = run_option_table().descriptions();
    const auto& program = runtime::program_options();
    made.insert(made.end(), program.begin(), program.end());
    return made;
  }();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& option) { return option.name == name; });
  return found == all.end() ? nullptr : &*found;
}

constexpr std::string_view kNoMegatron = "the layers of a model are not split over ranks; take FSDP instead";
constexpr std::string_view kNoFp8 = "no kernel computes in 8 bits; use bf16";
constexpr std::string_view kNoTpu =
    "LibTorch has no backend for TPUs and Neuron, which are reached through Python packages; take a CPU or GPU, or, if "
    "the program loads one, name it: --accelerator tpu";
constexpr std::string_view kOtherDevices = "MULTI_XPU MULTI_HPU MULTI_NPU MULTI_MLU MULTI_SDAA MULTI_MUSA";

/// Translates one set of values; see translate_accelerate().
class Translator {
 public:
  Translator(const RawOptions& values, AccelerateOrigin origin, const OwnChoices& own)
      : values_(values), origin_(origin), own_(own) {}

  AccelerateRequest translate() {
    check_environment();
    check_kinds();
    for (const auto& [name, found] : values_)
      if (const auto* known = find_accelerate_name(name)) take(*known, name, found);
    take_precision();
    take_devices();
    take_strategy();
    return std::move(result_);
  }

 private:
  const Found* find(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }

  bool is_on(const std::string& name) const {
    const auto* found = find(name);
    const auto on = found ? read_bool(found->text) : false;
    if (!on) options::refuse({.name = name}, *found, "true or false");
    return *on;
  }

  std::string kind() const {
    const auto* found = find("distributed_type");
    return found ? upper_case(found->text) : "";
  }

  bool shards() const { return kind() == "FSDP" || is_on("use_fsdp"); }
  bool uses_deepspeed() const { return kind() == "DEEPSPEED" || is_on("use_deepspeed"); }

  /// A file asks for parallelism by having parallelism_config.
  bool uses_parallelism() const {
    return is_on("use_parallelism_config") || std::any_of(values_.begin(), values_.end(), [](const auto& entry) {
             return entry.first.starts_with("parallelism_config_") && !is_flag(entry.second);
           });
  }

  void check_environment() const {
    const auto* place = find("compute_environment");
    if (place && lower_case(place->text) == "amazon_sagemaker")
      refuse_value("compute_environment", *place, "`muster submit sagemaker` writes a job for Amazon SageMaker");
    if (place && lower_case(place->text) != "local_machine")
      refuse_value("compute_environment", *place, "the known ones are LOCAL_MACHINE and AMAZON_SAGEMAKER");
    const auto* type = find("distributed_type");
    if (!type) return;
    if (kind() == "MEGATRON_LM") refuse_value("distributed_type", *type, kNoMegatron);
    const bool is_loaded = is_one_of(kind(), "xla tpu multi_neuron");
    if (is_loaded && !own_.accelerator) refuse_value("distributed_type", *type, kNoTpu);
    if (is_one_of(kind(), lower_case(std::string(kOtherDevices))))
      refuse_value("distributed_type", *type,
                   "the launcher counts NVIDIA's and AMD's devices and CPUs; start the ranks by torchrun --no-python");
    if (is_loaded) return;
    if (!is_one_of(kind(), "no multi_cpu multi_gpu fsdp deepspeed"))
      refuse_value("distributed_type", *type, "the known ones are NO, MULTI_CPU, MULTI_GPU, FSDP and DEEPSPEED");
  }

  /// As in Accelerate, at most one of these flags may be given.
  void check_kinds() const {
    std::vector<std::string> given;
    for (const auto* name : {"cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp"})
      if (const auto* found = find(name); found && is_flag(*found) && is_on(name))
        given.push_back("--" + std::string(name));
    if (given.size() > 1)
      throw ConfigError("MU483", "the flags " + joined(given) + " exclude each other; give one of them");
    const auto* parallelism = find("use_parallelism_config");
    if (parallelism && is_flag(*parallelism) && !shards())
      throw ConfigError("MU483", "--use_parallelism_config has an effect only with --use_fsdp; add it");
    for (const auto& [name, found] : values_) check_paradigm_of(name, found);
  }

  /// Accelerate ignores a flag without its paradigm, which is never what the user wants, so it is an error here.
  void check_paradigm_of(const std::string& name, const Found& found) const {
    const auto* known = find_accelerate_name(name);
    if (!known || !is_flag(found)) return;
    const bool of_fsdp = known->group == Group::fsdp && !shards() && !own_.strategy;
    const bool of_deepspeed = (name == "zero_stage" || name == "deepspeed_config_file") && !uses_deepspeed();
    if (of_fsdp || of_deepspeed)
      throw ConfigError("MU483", found.place + " has an effect only with " +
                                     (of_fsdp ? "--use_fsdp" : "--use_deepspeed") + "; add it, or drop the flag");
  }

  void set(const std::string& option, const std::string& name, Found found) {
    const auto* description = described(option);
    const bool is_default = description && options::is_default(*description, found.text);
    if (origin_ == AccelerateOrigin::own_file && !is_flag(found) && is_default) return;
    if (!is_flag(found)) found.place += " (" + name + ")";
    result_.options[option] = std::move(found);
  }

  void take(const ForeignWord& known, const std::string& name, const Found& found) {
    using enum Group;
    const bool is_written = !is_flag(found) && !is_variable(found);
    if (known.group == deepspeed && !uses_deepspeed() && is_written) return;
    if (known.group == fsdp && !shards() && is_written && origin_ == AccelerateOrigin::own_file) return;
    const bool idle = options::asks_for_nothing(known, found.text);
    const bool is_loaded = name == "tpu" && own_.accelerator;
    if (known.follow == Follow::refused && !idle && !is_loaded) refuse_value(name, found, known.text);
    if (known.follow == Follow::warned && !idle)
      result_.without_effect.push_back((is_variable(found) ? found.place : name) + " (" + std::string(known.text) +
                                       ")");
    if (known.follow != Follow::option) return;
    const auto option = std::string(known.text);
    if (described(option)) {
      if (known.group != deepspeed || !idle) set(option, name, found);
    } else if (!idle) {
      refuse_value(name, found, "`muster run` has no such option");
    }
  }

  void take_precision() {
    const auto* found = find("mixed_precision");
    if (!found) {
      if (const auto* old = find("fp16"); old && is_on("fp16")) set("precision", "fp16", {"fp16", old->place});
      return;
    }
    const auto word = lower_case(found->text);
    if (word == "fp8") refuse_value("mixed_precision", *found, kNoFp8);
    if (!is_one_of(word, "no fp16 bf16"))
      refuse_value("mixed_precision", *found, "the known ones are no, fp16 and bf16");
    if (word != "no" || is_flag(*found)) set("precision", "mixed_precision", {word, found->place});
  }

  int whole_number(const std::string& name, const Found& found) const {
    int value = 0;
    if (const auto wanted = options::Value<int>::read(found.text, value); !wanted.empty())
      options::refuse({.name = name}, found, wanted);
    return value;
  }

  /// The number of machines that share the ranks.
  int nodes() const {
    const auto* machines = find("num_machines");
    const bool is_ours = own_.nodes > 0 && !(machines && is_flag(*machines));
    return is_ours ? own_.nodes : machines ? std::max(1, whole_number("num_machines", *machines)) : 1;
  }

  [[noreturn]] void refuse_unknown_count(const Found* total) const {
    const auto* type = find("distributed_type");
    const auto what = total  ? named("num_processes", *total) + " is " + total->text
                      : type ? type->place + ": num_processes is missing"
                             : std::string("num_processes is missing");
    throw ConfigError("MU482", what +
                                   ", so that the number of ranks must be given: add --num_processes N (of muster "
                                   "run: --devices N)");
  }

  /// The number of ranks on this machine; 0 if it is not given here.
  int ranks_here() const {
    const auto* total = find("num_processes");
    if (!total && origin_ == AccelerateOrigin::own_file && kind() == "NO") return 1;
    if (!total && origin_ == AccelerateOrigin::among_ours) return 0;
    const int count = total ? whole_number("num_processes", *total) : -1;
    if (own_.devices && count < 1) return 0;
    if (count < 1) refuse_unknown_count(total);
    if (count % nodes() != 0)
      throw ConfigError("MU482", named("num_processes", *total) + " is " + total->text + ", which " +
                                     std::to_string(nodes()) + " machines cannot share evenly; give a multiple of it");
    const auto* several = find("multi_gpu");
    if (several && is_flag(*several) && is_on("multi_gpu") && count < 2)
      throw ConfigError("MU483", "--multi_gpu wants at least 2 processes; give --num_processes 2, or drop --multi_gpu");
    return count / nodes();
  }

  void take_devices() {
    const std::string on_cpu = is_on("cpu")            ? "cpu"
                               : kind() == "MULTI_CPU" ? "distributed_type"
                               : is_on("use_cpu")      ? "use_cpu"
                                                       : "";
    if (!on_cpu.empty()) set("accelerator", on_cpu, {"cpu", find(on_cpu)->place});
    const int ranks = ranks_here();
    const auto* total = find("num_processes");
    if (ranks > 0)
      set("devices", "num_processes", {std::to_string(ranks), total ? total->place : find("distributed_type")->place});
    const auto* ids = find("gpu_ids");
    if (!on_cpu.empty() || !ids || lower_case(ids->text) == "all") return;
    auto list = options::split_items(ids->text);
    std::erase(list, "");
    if (!own_.has_accelerators) {
      if (ranks == 0) set("devices", "gpu_ids", {std::to_string(list.size()), ids->place});
      return;
    }
    if (ranks > static_cast<int>(list.size()))
      throw ConfigError("MU482", named("gpu_ids", *ids) + " has " + std::to_string(list.size()) + " devices for " +
                                     std::to_string(ranks) + " ranks; name one for each, or all");
    if (ranks > 0) list.resize(static_cast<size_t>(ranks));
    std::string text;
    for (const auto& id : list) text += id + ",";
    if (list.size() > 1) text.pop_back();
    set("devices", "gpu_ids", {text, ids->place});
  }

  void take_strategy() {
    if (uses_deepspeed()) take_stage();
    else if (const std::string name = is_on("use_fsdp") ? "use_fsdp" : "distributed_type"; shards())
      set("strategy", name, {"fsdp", find(name)->place});
    take_sharding();
  }

  /// As in Accelerate, a file's FSDP fields count only if the file asks for FSDP; values among Muster's options always
  /// count.
  bool counts(const ForeignWord& known, const Found& found) const {
    if (known.follow != Follow::sharding) return false;
    const bool asked_for = shards() || is_flag(found) || origin_ == AccelerateOrigin::among_ours;
    return known.group == Group::parallelism ? uses_parallelism() && (asked_for || found.text != "1") : asked_for;
  }

  void take_stage() {
    const auto* stage = find("zero_stage");
    const auto* found = stage ? stage : find(is_on("use_deepspeed") ? "use_deepspeed" : "distributed_type");
    const int number = stage ? whole_number("zero_stage", *stage) : 2;
    if (number < 0 || number > 3) options::refuse({.name = "zero_stage"}, *stage, "0, 1, 2 or 3");
    set("strategy", stage ? "zero_stage" : "use_deepspeed",
        {number == 0 ? "ddp" : "zero" + std::to_string(number), found->place});
  }

  void take_sharding() {
    RawOptions fields;
    for (const auto& [name, found] : values_) {
      const auto* known = find_accelerate_name(name);
      if (known && counts(*known, found))
        fields[std::string(known->text)] = {found.text, named(name, found), found.is_list};
    }
    for (auto& [name, found] : strategy::own_sharding_fields(fields)) {
      const auto* description = described("fsdp." + name);
      const bool is_default = description && options::is_default(*description, found.text);
      if (!is_flag(found) && origin_ == AccelerateOrigin::own_file && is_default) continue;
      result_.options["fsdp." + name] = found;
    }
  }

  const RawOptions& values_;
  AccelerateOrigin origin_;
  OwnChoices own_;
  AccelerateRequest result_;
};

}  // namespace

std::vector<std::string> judge_variables(const Environment& variables) {
  constexpr const char* kOfTensorParallel = "ACCELERATE_USE_TP";  // set by older versions, for its TP_SIZE
  RawOptions values;
  for (const auto& one : options::foreign_words(options::Place::launch)) {
    const auto variable = variable_of_accelerate(one);
    if (const auto text = variable.empty() ? std::nullopt : variables.find(variable))
      values[std::string(one.word)] = {*text, "variable " + variable};
  }
  if (const auto file = values.find("deepspeed_config_file");
      file != values.end() && !is_one_of(file->second.text, "none"))
    refuse_value(file->first, file->second, "give it by --use_deepspeed --deepspeed_config_file");
  if (const auto text = variables.find(kOfTensorParallel); text && read_bool(*text) != false)
    refuse_value("tp_size", {*text, std::string("variable ") + kOfTensorParallel}, kNoMegatron);
  return translate_accelerate(values, AccelerateOrigin::among_ours).without_effect;
}

AccelerateRequest translate_accelerate(const RawOptions& values, AccelerateOrigin origin, const OwnChoices& own) {
  return Translator(values, origin, own).translate();
}

}  // namespace muster::cli
