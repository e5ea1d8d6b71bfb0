#include "muster/base/detail/file_values.h"

#include <algorithm>
#include <set>

#include "muster/base/error.h"
#include "yaml_document.h"

namespace muster::options {
namespace {

ValueForm form_of(const YAML::Node& node) {
  if (node.IsNull() || (!node.IsScalar() && node.size() == 0)) return ValueForm::none;
  if (node.IsScalar()) return ValueForm::plain;
  return std::all_of(node.begin(), node.end(), [](const auto& item) { return item.IsScalar(); }) ? ValueForm::list
                                                                                                 : ValueForm::nested;
}

struct Reader {
  const std::string& file;
  std::vector<FileValue> values;
  std::set<std::string> seen;

  void read(const YAML::Node& node, const std::string& prefix, int depth) {
    for (const auto& entry : node) {
      const auto where = place_of(file, entry.first.Mark());
      if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
      const auto key = prefix + entry.first.Scalar();
      if (!seen.insert(key).second) refuse_form(where, "'" + key + "' stands there twice");
      if (entry.second.IsMap() && depth == kDeepest) refuse_form(where, "sections are nested too deep");
      if (entry.second.IsMap() && entry.second.size() > 0) {
        read(entry.second, key + ".", depth + 1);
        continue;
      }
      const auto form = form_of(entry.second);
      const bool has_text = form == ValueForm::plain || form == ValueForm::list;
      values.push_back({key, {has_text ? read_value(entry.second, where) : "", where, form == ValueForm::list}, form});
    }
  }
};

}  // namespace

std::vector<FileValue> read_file_values(const std::string& path) {
  const auto text = read_text(path);
  Reader reader{path, {}, {}};
  try {
    reader.read(read_document(text, path), "", 1);
  } catch (const YAML::Exception& error) {
    throw ConfigError("MU004", place_of(path, error.mark) + ": no YAML: " + error.msg);
  }
  return std::move(reader.values);
}

}  // namespace muster::options
