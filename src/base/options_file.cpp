#include "muster/base/detail/options_file.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include <yaml-cpp/yaml.h>

#include "muster/base/detail/options_list.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

constexpr int kDeepest = 8;  // an alias of YAML may make a section contain itself

std::string place(const std::string& file, const YAML::Mark& mark) {
  return file + " line " + std::to_string(mark.line + 1);
}

[[noreturn]] void refuse_form(const std::string& where, const std::string& what) {
  throw ConfigError("MU004", where + ": " + what + "; write 'key: value', 'key: [a, b]' or a section of such lines");
}

/// In a list of pairs (fsdp: [stage=full, "unit_classes=A,B"]) the commas are those of the pair.
bool is_pair(std::string_view item) {
  const auto sign = item.find('=');
  return sign != std::string_view::npos && sign > 0 &&
         std::all_of(item.begin(), item.begin() + static_cast<std::ptrdiff_t>(sign),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

std::string read_value(const YAML::Node& node, const std::string& where) {
  if (node.IsNull()) return "";
  if (node.IsScalar()) return node.Scalar();
  if (!node.IsSequence()) refuse_form(where, "a value or a list of values is wanted here");
  std::string result;
  for (const auto& item : node) {
    if (!item.IsScalar()) refuse_form(where, "a list may only hold plain values");
    const auto& word = item.Scalar();
    result += (result.empty() ? "" : ",") + (is_pair(word) ? word : list_item(word));
  }
  // Devices [3] is the one with index 3, and devices 3 are three.
  return node.size() == 1 && !is_pair(node[0].Scalar()) ? result + "," : result;
}

void read_section(const YAML::Node& node, const std::string& file, RawOptions& into, const std::string& prefix = "",
                  int depth = 1) {
  for (const auto& entry : node) {
    std::string where = place(file, entry.first.Mark());
    if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
    const auto key = prefix + entry.first.Scalar();
    if (entry.second.IsMap() && depth == kDeepest) refuse_form(where, "sections are nested too deep");
    if (entry.second.IsMap()) read_section(entry.second, file, into, key + ".", depth + 1);
    else if (!into.emplace(key, Found{read_value(entry.second, where), where, entry.second.IsSequence()}).second)
      refuse_form(where, "'" + key + "' stands there twice");
  }
}

/// The one document of the text; null if it has none.
YAML::Node read_document(const std::string& text, const std::string& name) {
  YAML::Node result;
  for (const auto& document : YAML::LoadAll(text)) {
    if (document.IsNull()) continue;
    if (!result.IsNull()) refuse_form(name, "there are several documents, separated by '---', where one is wanted");
    if (!document.IsMap()) refuse_form(name, "the file holds no keys");
    result.reset(document);
  }
  return result;
}

}  // namespace

File File::load(const std::string& path, const std::string& only) {
  std::ifstream stream(path);
  std::ostringstream text;
  bool readable = stream && !std::filesystem::is_directory(path);
  if (readable) text << stream.rdbuf();
  if (!readable)
    throw ConfigError("MU004", "cannot read the option file '" + path + "'; check its path and permissions");
  return parse(text.str(), path, only);
}

File File::parse(const std::string& text, const std::string& name, const std::string& only) {
  File result;
  try {
    for (const auto& entry : read_document(text, name)) {
      const auto where = place(name, entry.first.Mark());
      const auto key = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
      if (!only.empty() && key != only) {
        result.outside_.emplace(key, Found{"", where});
      } else if (!key.empty() && (entry.second.IsMap() || (key == only && entry.second.IsNull()))) {
        if (result.sections_.contains(key)) refuse_form(where, "'" + key + "' stands there twice");
        read_section(entry.second, name, result.sections_[key]);
      } else if (key == only && !only.empty()) {
        refuse_form(where, "'" + key + "' is a section, which holds keys");
      } else {
        YAML::Node single;
        single.force_insert(entry.first, entry.second);
        read_section(single, name, result.sections_[""]);
      }
    }
  } catch (const YAML::Exception& error) {
    throw ConfigError("MU004", place(name, error.mark) + ": no YAML: " + error.msg);
  }
  return result;
}

const RawOptions& File::section(const std::string& name) const {
  static const RawOptions empty;
  auto found = sections_.find(name);
  return found == sections_.end() ? empty : found->second;
}

std::vector<std::string> File::sections() const {
  std::vector<std::string> result;
  result.reserve(sections_.size());
  for (const auto& [name, keys] : sections_) result.push_back(name);
  return result;
}

File File::changed(const std::string& name, const std::function<void(RawOptions&)>& change) const {
  File result = *this;
  if (const auto found = result.sections_.find(name); found != result.sections_.end()) change(found->second);
  return result;
}

}  // namespace muster::options
