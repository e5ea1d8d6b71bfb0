#pragma once

#include <string>

#include <yaml-cpp/yaml.h>

/// Functions shared by the readers of YAML files.
namespace muster::options {

inline constexpr int kDeepest = 8;  ///< nesting limit of sections, since a YAML alias may make a section contain itself

/// Where a value is, for messages: "run.yaml line 3".
std::string place_of(const std::string& file, const YAML::Mark& mark);

/// Throws: ConfigError (MU004), always, with the form that is wanted.
[[noreturn]] void refuse_form(const std::string& where, const std::string& what);

/// A scalar or a list of scalars as one text, see split_items(); null is "". Throws: ConfigError (MU004) otherwise.
std::string read_value(const YAML::Node& node, const std::string& where);

/// The only document of the text, a map; null if it has none. Throws: ConfigError (MU004) for several documents or
/// another form; YAML::Exception for text that is not YAML.
YAML::Node read_document(const std::string& text, const std::string& name);

}  // namespace muster::options
