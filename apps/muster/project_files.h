#pragma once

#include <string_view>
#include <vector>

namespace muster::cli {

/// A file of the project that `muster new` writes, built into the program.
struct ProjectFile {
  std::string_view name;
  std::string_view text;
};

/// The files that docs/howto/project.md shows, in reading order.
const std::vector<ProjectFile>& project_files();

}  // namespace muster::cli
