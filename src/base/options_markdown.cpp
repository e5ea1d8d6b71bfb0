#include "base/options_markdown.h"

namespace muster::options {
namespace {

std::string code(const std::string& text) { return text.empty() ? "–" : "`" + text + "`"; }

std::string flags_of(const Description& option) {
  if (option.code_only) return "code only";
  return code(option.flag()) + (option.is_switch ? ", `--no-" + option.flag().substr(2) + "`" : "");
}

std::string names_of(const Description& option) {
  auto names = code(option.name);
  for (const auto& alias : option.aliases) names += ", " + code(alias);
  return names;
}

std::string variables_of(const Description& option) {
  std::string names = option.variable.empty() ? "" : code(option.variable);
  for (const auto& name : option.other_tools) names += (names.empty() ? "" : ", ") + code(name);
  return names.empty() ? "–" : names;
}

std::string type_of(const Description& option) {
  if (option.unit.empty() || option.unit == option.type) return option.type.empty() ? "–" : option.type;
  return option.type + " (" + option.unit + ")";
}

}  // namespace

std::string to_markdown(const std::vector<Description>& table) {
  std::string result = "| name | flag | variables | type | default | meaning |\n|---|---|---|---|---|---|\n";
  for (const auto& option : table)
    result += "| " + names_of(option) + " | " + flags_of(option) + " | " + variables_of(option) + " | " +
              type_of(option) + " | " + code(option.default_text) + " | " + option.help + " |\n";
  return result;
}

}  // namespace muster::options
