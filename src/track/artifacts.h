#pragma once

#include <filesystem>
#include <string>

namespace muster::track {

/// Copies a file, or a folder with all in it, to folder/artifacts/name, in place of what is there; returns its path.
/// Throws: ConfigError (MU457).
std::filesystem::path copy_artifact(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name);

}  // namespace muster::track
