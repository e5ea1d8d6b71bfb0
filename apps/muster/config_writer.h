#pragma once

#include <string>
#include <utility>
#include <vector>

namespace muster::cli {

/// Keys of section `run` and their texts, in the order in which they are written.
using ConfigKeys = std::vector<std::pair<std::string, std::string>>;

/// The file as YAML; "fsdp.stage" stands in a section "fsdp".
std::string config_text(const ConfigKeys& keys);

/// Publishes the file whole; makes its folder. Throws: ConfigError (MU484) if it cannot be written.
void write_config(const std::string& path, const ConfigKeys& keys);

}  // namespace muster::cli
