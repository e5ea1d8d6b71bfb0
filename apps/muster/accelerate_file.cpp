#include "accelerate_file.h"

#include <algorithm>

#include "accelerate_names.h"
#include "base/text.h"
#include "key_hint.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

using options::RawOptions;

/// All sections end with "_config", so without it the nearest name is more meaningful.
std::string section_hint(const std::string& section) {
  const auto bare = [](const std::string& name) { return name.substr(0, name.rfind('_')); };
  const auto known = accelerate_sections();
  std::vector<std::string> names;
  for (const auto& one : known) names.push_back(bare(one));
  const auto nearest = nearest_name(bare(section), names);
  return nearest.empty() ? known_ones(known) : "; nearest is '" + nearest + "_config'";
}

[[noreturn]] void refuse_accelerate_key(const options::FileValue& value, const std::string& name) {
  const auto dot = value.key.find('.');
  const auto section = dot == std::string::npos ? "" : value.key.substr(0, dot);
  const auto in_section = accelerate_keys_of(section);
  const auto hint = in_section.empty() ? section_hint(section) : key_hint(name, in_section);
  throw ConfigError("MU480", value.found.place + ": a file of `accelerate config` has no key '" + value.key + "'" +
                                 hint + "; correct it, or take it out");
}

/// Flags that select a kind of launch.
constexpr std::string_view kKinds[] = {"multi_gpu", "tpu",           "tpu_cluster",
                                       "use_fsdp",  "use_deepspeed", "use_megatron_lm"};

}  // namespace

bool is_flag(const options::Found& found) { return found.place.starts_with("flag "); }

std::string note_without_effect(const std::vector<std::string>& asked) {
  return asked.empty()
             ? ""
             : "these ask for what Muster does not have, and have no effect: " + joined(asked, {}, kMostListed);
}

RawOptions accelerate_values(const std::string& path, const std::vector<options::FileValue>& values) {
  RawOptions texts;
  for (const auto& value : values) {
    const auto name = accelerate_name_of_key(value.key);
    const auto* known = find_accelerate_name(name);
    if (!known && !(value.form == options::ValueForm::none && !accelerate_keys_of(value.key).empty()))
      refuse_accelerate_key(value, name);
    if (value.form != options::ValueForm::none) texts[name] = value.found;
  }
  if (!texts.contains("distributed_type"))
    throw ConfigError("MU480", path +
                                   ": the key distributed_type is missing, without which a file of `accelerate "
                                   "config` says no strategy; add 'distributed_type: NO', MULTI_CPU, MULTI_GPU, FSDP "
                                   "or DEEPSPEED");
  return texts;
}

RawOptions extract_accelerate(RawOptions& texts, const std::vector<options::Description>& known) {
  RawOptions theirs;
  for (auto at = texts.begin(); at != texts.end();) {
    const auto name = accelerate_name_of_key(at->first);
    if (options::find_option(known, at->first) || !find_accelerate_name(name)) {
      ++at;
      continue;
    }
    if (!at->second.text.empty()) theirs[name] = at->second;
    at = texts.erase(at);
  }
  return theirs;
}

RawOptions merged_accelerate(const RawOptions& flags, const RawOptions& in_file) {
  auto merged = flags;
  merged.insert(in_file.begin(), in_file.end());
  const bool says_kind =
      std::any_of(std::begin(kKinds), std::end(kKinds), [&](auto kind) { return flags.contains(std::string(kind)); });
  if (!says_kind) return merged;
  if (!flags.contains("distributed_type")) merged.erase("distributed_type");
  return merged;
}

}  // namespace muster::cli
