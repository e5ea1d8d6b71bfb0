#include <filesystem>
#include <fstream>
#include <sstream>

#include <yaml-cpp/yaml.h>

#include "muster/base/detail/options.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

std::string place(const std::string& file, const YAML::Mark& mark) {
  return file + " line " + std::to_string(mark.line + 1);
}

[[noreturn]] void refuse_form(const std::string& where, const std::string& what) {
  throw ConfigError("MU004", where + ": " + what + "; write 'key: value', 'key: [a, b]' or a section of such lines");
}

std::string read_value(const YAML::Node& node, const std::string& where) {
  if (node.IsNull()) return "";
  if (node.IsScalar()) return node.Scalar();
  if (!node.IsSequence()) refuse_form(where, "a value or a list of values is wanted here");
  std::string result;
  for (const auto& item : node) {
    if (!item.IsScalar()) refuse_form(where, "a list may only hold plain values");
    result += (result.empty() ? "" : ",") + item.Scalar();
  }
  return result;
}

void read_section(const YAML::Node& node, const std::string& file, Texts& into, const std::string& prefix = "") {
  for (const auto& entry : node) {
    std::string where = place(file, entry.first.Mark());
    if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
    const auto key = prefix + entry.first.Scalar();
    if (entry.second.IsMap()) read_section(entry.second, file, into, key + ".");
    else if (!into.emplace(key, Found{read_value(entry.second, where), where}).second)
      refuse_form(where, "'" + key + "' stands there twice");
  }
}

}  // namespace

File File::load(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  bool readable = stream && !std::filesystem::is_directory(path);
  if (readable) text << stream.rdbuf();
  if (!readable)
    throw ConfigError("MU004", "cannot read the option file '" + path + "'; check its path and permissions");
  return parse(text.str(), path);
}

File File::parse(const std::string& text, const std::string& name) {
  File result;
  try {
    YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return result;
    if (!root.IsMap()) refuse_form(name, "the file holds no keys");
    YAML::Node top;
    for (const auto& entry : root) {
      if (entry.first.IsScalar() && entry.second.IsMap())
        read_section(entry.second, name, result.sections_[entry.first.Scalar()]);
      else {
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

const std::map<std::string, Found>& File::section(const std::string& name) const {
  static const std::map<std::string, Found> empty;
  auto found = sections_.find(name);
  return found == sections_.end() ? empty : found->second;
}

std::vector<std::string> File::sections() const {
  std::vector<std::string> result;
  result.reserve(sections_.size());
  for (const auto& [name, keys] : sections_) result.push_back(name);
  return result;
}

File File::changed(const std::string& name, void (*change)(Texts&)) const {
  File result = *this;
  if (const auto found = result.sections_.find(name); found != result.sections_.end()) change(found->second);
  return result;
}

}  // namespace muster::options
