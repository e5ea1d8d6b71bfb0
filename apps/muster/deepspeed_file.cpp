#include "deepspeed_file.h"

#include <set>
#include <sstream>

#include "accelerate_file.h"
#include "base/text.h"
#include "base/yaml.h"
#include "deepspeed_names.h"
#include "key_hint.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

using options::FileValue;
using options::Found;
using options::RawOptions;
using options::ValueForm;

constexpr const char* kFileOfDeepspeed = "deepspeed_config_file";

bool are_equal(const std::string& one, const std::string& other) {
  const auto number = parse_number<double>(one), another = parse_number<double>(other);
  return number && another ? *number == *another : say_the_same(one, other);
}

/// Whether the value switches its section off.
bool is_off(const FileValue& value) { return value.key.ends_with(".enabled") && read_bool(value.found.text) == false; }

bool is_accepted(const ForeignWord& key, const FileValue& value) {
  const auto text = lower_case(value.found.text);
  if (value.form == ValueForm::none || text == "auto" || is_off(value)) return true;
  std::istringstream words{std::string(key.accepted)};
  for (std::string word; words >> word;)
    if (are_equal(word, text)) return true;
  return false;
}

/// The section of a key: "zero_optimization.offload_param" for "zero_optimization.offload_param.device"; "" at the top
/// level.
std::string section_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

[[noreturn]] void refuse_key(const FileValue& value) {
  auto section = section_of(value.key);
  // An unknown section has no keys, so the section itself is reported as the unknown key of its parent.
  auto key = value.key;
  while (!section.empty() && deepspeed_keys_of(section).empty()) {
    key = section;
    section = section_of(section);
  }
  throw ConfigError("MU480",
                    value.found.place + ": DeepSpeed's file has no key '" + key + "'" +
                        key_hint(key.substr(section.empty() ? 0 : section.size() + 1), deepspeed_keys_of(section)) +
                        "; correct it, or take it out");
}

/// Translates the values of one file to Accelerate's names.
class DeepspeedTranslator {
 public:
  explicit DeepspeedTranslator(DeepspeedRequest& into) : into_(into) {}

  void translate(const std::vector<FileValue>& values) {
    for (const auto& value : values) {
      if (is_off(value)) off_.insert(section_of(value.key));
      if (value.key.ends_with(".enabled") && read_bool(value.found.text) == true) on_.insert(section_of(value.key));
    }
    for (const auto& value : values) take(value);
  }

 private:
  /// Keys of a section that is switched off do not count; if DeepSpeed has a switch for the section, it must be on.
  bool counts(const std::string& key) const {
    if (key.ends_with(".enabled")) return true;
    const auto section = section_of(key);
    if (off_.contains(section)) return false;
    const auto* its_switch = section.empty() ? nullptr : find_deepspeed_key(section + ".enabled");
    return !its_switch || !its_switch->word.ends_with(".enabled") || on_.contains(section);
  }

  void take(const FileValue& value) {
    const auto* key = find_deepspeed_key(value.key);
    const bool is_empty_section = value.form == ValueForm::none && !deepspeed_keys_of(value.key).empty();
    if (!key && !is_empty_section) refuse_key(value);
    if (!key || is_accepted(*key, value) || !counts(value.key)) return;
    if (key->follow == Follow::in_code) return set(*key, value);
    if (key->follow == Follow::refused)
      throw ConfigError("MU481", value.found.place + ": " + value.key +
                                     " is given, which Muster does not follow: " + std::string(key->text));
    if (key->follow == Follow::warned) into_.without_effect.push_back(value.key + " (" + std::string(key->text) + ")");
  }

  void set(const ForeignWord& key, const FileValue& value) {
    const auto colon = key.text.find(": ");
    if (colon == std::string_view::npos) return set_unless_flag(std::string(key.text), value.found);
    const auto on = read_bool(value.found.text);
    if (!on) options::refuse({.name = value.key}, value.found, "true or false");
    if (*on)
      set_unless_flag(std::string(key.text.substr(0, colon)),
                      {std::string(key.text.substr(colon + 2)), value.found.place + ": " + value.key});
  }

  void set_unless_flag(const std::string& name, Found found) {
    const auto given = into_.accelerate.find(name);
    if (given == into_.accelerate.end() || !is_flag(given->second)) into_.accelerate[name] = std::move(found);
  }

  DeepspeedRequest& into_;
  std::set<std::string> off_, on_;
};

}  // namespace

bool has_deepspeed_file(const RawOptions& accelerate) {
  const auto file = accelerate.find(kFileOfDeepspeed);
  if (file == accelerate.end() || lower_case(file->second.text) == "none") return false;
  const auto type = accelerate.find("distributed_type"), flag = accelerate.find("use_deepspeed");
  return (type != accelerate.end() && lower_case(type->second.text) == "deepspeed") ||
         (flag != accelerate.end() && read_bool(flag->second.text) == true);
}

DeepspeedRequest with_deepspeed_file(RawOptions accelerate) {
  const auto path = accelerate.at(kFileOfDeepspeed).text;
  accelerate.erase(kFileOfDeepspeed);
  DeepspeedRequest request{std::move(accelerate)};
  DeepspeedTranslator(request).translate(options::read_file_values(path));
  request.accelerate.try_emplace("zero_stage", Found{"0", path});
  return request;
}

}  // namespace muster::cli
