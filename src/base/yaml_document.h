#pragma once

#include <string>

#include <yaml-cpp/yaml.h>

/// What the readers of YAML files share.
namespace muster::options {

inline constexpr int kDeepest = 8;  ///< an alias of YAML may make a section contain itself

/// "run.yaml line 3".
std::string place_of(const std::string& file, const YAML::Mark& mark);

/// Throws: ConfigError (MU004) that says what form is wanted.
[[noreturn]] void refuse_form(const std::string& where, const std::string& what);

/// A plain value or a list of them as one text, see options_list.h; null is "". Throws: ConfigError (MU004) otherwise.
std::string read_value(const YAML::Node& node, const std::string& where);

/// The one document of the text, a map; null if it has none. Throws: ConfigError (MU004) for several documents or
/// another form; YAML::Exception for what is no YAML.
YAML::Node read_document(const std::string& text, const std::string& name);

}  // namespace muster::options
