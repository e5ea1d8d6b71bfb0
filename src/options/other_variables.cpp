#include "base/options_text.h"
#include "base/text.h"
#include "base/variables.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"
#include "options/words.h"

namespace muster::runtime {
namespace {

constexpr const char* kFamilies[] = {"ACCELERATE_", "FSDP_", "LT_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "PL_"};
/// Prefixes of variables of tests, and of programs with custom options.
constexpr const char* kOthers[] = {"MUSTER_DATA_", "MUSTER_MODEL_", "MUSTER_TEST_"};

bool begins_with_one_of(const auto& families, const std::string& name) {
  return std::ranges::any_of(families, [&](const char* family) { return name.starts_with(family); });
}

bool is_on(const Environment& variables, const char* name) {
  return read_bool(variables.find(name).value_or("")).value_or(false);
}

/// Whether a rank follows the variable, or it asks for nothing: other launchers always set some.
bool is_known(const std::string& name, const std::string& text) {
  using options::Follow;
  if (const auto* word = options::find_foreign_word(options::Place::variable, name))
    return word->follow != Follow::warned || options::asks_for_nothing(*word, text);
  for (const auto& option : program_options())
    if (std::ranges::find(option.other_tools, name) != option.other_tools.end()) return true;
  return std::ranges::any_of(options::foreign_words(options::Place::sharding),
                             [&](const auto& word) { return word.variable == name; });
}

/// Every variable of Muster, as listed in docs/howto/environment.md.
std::vector<std::string> own_variables() {
  std::vector<std::string> names{
      options::kLineVariable, cluster::kJob,          cluster::kStoreFd,        cluster::kReportFd,
      cluster::kDeviceIndex,  cluster::kSecret,       cluster::kSecretFile,     cluster::kLog,
      cluster::kRestartCount, cluster::kJobStart,     cluster::kForkServer,     "MUSTER_CONFIG",
      "MUSTER_BACKEND_PATH",  "MUSTER_HOST",          "MUSTER_KEEP_MEMORY",     "MUSTER_TERMINAL",
      "MUSTER_NO_HALF_LSTM",  "MUSTER_NO_RANDOM_KEY", "MUSTER_NO_KEY_FALLBACK", "MUSTER_NO_RECOMPUTE"};
  for (const auto& options : {program_options(), run_option_table().descriptions()})
    for (const auto& option : options)
      if (!option.variable.empty()) names.push_back(option.variable);
  return names;
}

}  // namespace

options::RawOptions given_by_other_tools(const Environment& variables) {
  options::RawOptions texts;
  if (const auto device = variables.find("ACCELERATE_TORCH_DEVICE"))
    texts["accelerator"] = {device->substr(0, device->find(':')), "variable ACCELERATE_TORCH_DEVICE"};
  if (is_on(variables, "ACCELERATE_USE_CPU")) texts["accelerator"] = {"cpu", "variable ACCELERATE_USE_CPU"};
  const auto stage = variables.find("ACCELERATE_DEEPSPEED_ZERO_STAGE");
  if (is_on(variables, "ACCELERATE_USE_DEEPSPEED"))
    texts["strategy"] = {stage == "0" ? "ddp" : "zero" + stage.value_or("2"),
                         stage ? "variable ACCELERATE_DEEPSPEED_ZERO_STAGE" : "variable ACCELERATE_USE_DEEPSPEED"};
  return texts;
}

std::string misspelt_variables(const Environment& variables) {
  const auto known = own_variables();
  std::vector<std::string> misspelt;
  for (const auto& [name, text] : variables.variables()) {
    if (!name.starts_with("MUSTER_") || begins_with_one_of(kOthers, name)) continue;
    if (std::ranges::find(known, name) != known.end()) continue;
    const auto nearest = nearest_name(name, known);
    misspelt.push_back(name + (nearest.empty() ? "" : " (nearest is " + nearest + ")"));
  }
  return misspelt.empty()
             ? ""
             : "variables that Muster does not read: " + joined(misspelt) + "; see docs/howto/environment.md";
}

std::string unknown_variables(const Environment& variables) {
  std::vector<std::string> names;
  for (const auto& [name, text] : variables.variables())
    if (begins_with_one_of(kFamilies, name) && !text.empty() && !is_known(name, text)) names.push_back(name);
  return names.empty() ? ""
                       : "variables of Accelerate, Lightning or PyTorch that have no effect here: " + joined(names) +
                             "; set the option in the program, or see docs/reference/options.md";
}

}  // namespace muster::runtime
