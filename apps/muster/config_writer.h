#pragma once

#include <string>
#include <utility>
#include <vector>

namespace muster::cli {

/// Keys of section `run` with their texts, in the order of writing.
using ConfigKeys = std::vector<std::pair<std::string, std::string>>;

/// The file as YAML; "fsdp.stage" is written in a section "fsdp".
std::string config_text(const ConfigKeys& keys);

/// Replaces the file atomically; creates its folder. Throws: ConfigError (MU484) if it cannot be written.
void write_config(const std::string& path, const ConfigKeys& keys);

}  // namespace muster::cli
