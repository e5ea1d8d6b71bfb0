#pragma once

#include <filesystem>
#include <string>

namespace muster::track {

/// Copies a file or a whole folder to folder/artifacts/name, replacing what exists there; returns the new path.
/// Throws: ConfigError (MU457).
std::filesystem::path copy_artifact(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name);

}  // namespace muster::track
