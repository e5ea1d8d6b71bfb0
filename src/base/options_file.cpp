#include "base/file_values.h"
#include "muster/base/detail/options.h"
#include "muster/base/error.h"
#include "yaml_document.h"

namespace muster::options {
namespace {

void read_section(const YAML::Node& node, const std::string& file, RawOptions& into, const std::string& prefix = "",
                  int depth = 1) {
  for (const auto& entry : node) {
    std::string where = place_of(file, entry.first.Mark());
    if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
    const auto key = prefix + entry.first.Scalar();
    if (entry.second.IsMap() && depth == kDeepest) refuse_form(where, "sections are nested too deep");
    if (entry.second.IsMap()) read_section(entry.second, file, into, key + ".", depth + 1);
    else if (!into.emplace(key, Found{read_value(entry.second, where), where, entry.second.IsSequence()}).second)
      refuse_form(where, "'" + key + "' stands there twice");
  }
}

}  // namespace

File File::load(const std::string& path, const std::string& only) { return parse(read_text(path), path, only); }

File File::parse(const std::string& text, const std::string& name, const std::string& only) {
  File result;
  try {
    for (const auto& entry : read_document(text, name)) {
      const auto where = place_of(name, entry.first.Mark());
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
    throw ConfigError("MU004", place_of(name, error.mark) + ": no YAML: " + error.msg);
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
