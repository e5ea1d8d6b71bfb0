#pragma once  // for other rooms

#include <string>

namespace muster::options {

/// The text as a value of a YAML file, quoted where a reader would take it for something else. Booleans and numbers
/// stay as they are.
std::string yaml_text(const std::string& text);

}  // namespace muster::options
