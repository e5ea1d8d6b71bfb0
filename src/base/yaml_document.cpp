#include "yaml_document.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "muster/base/error.h"
#include "options_line.h"

namespace muster::options {
namespace {

/// In a list of pairs (fsdp: [stage=full, "unit_classes=A,B"]) the commas belong to the pair.
bool is_pair(std::string_view item) {
  const auto sign = item.find('=');
  return sign != std::string_view::npos && sign > 0 &&
         std::all_of(item.begin(), item.begin() + static_cast<std::ptrdiff_t>(sign),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

}  // namespace

std::string place_of(const std::string& file, const YAML::Mark& mark) {
  return file + " line " + std::to_string(mark.line + 1);
}

void refuse_form(const std::string& where, const std::string& what) {
  throw ConfigError("MU004", where + ": " + what + "; write 'key: value', 'key: [a, b]' or a section of such lines");
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
  // The comma tells `devices: [3]`, the device with index 3, from `devices: 3`, three devices.
  return node.size() == 1 && !is_pair(node[0].Scalar()) ? result + "," : result;
}

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

}  // namespace muster::options
