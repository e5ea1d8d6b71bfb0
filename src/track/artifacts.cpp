#include "artifacts.h"

#include <algorithm>
#include <system_error>

#include "base/log.h"
#include "base/shown.h"
#include "muster/base/error.h"

namespace muster::track {

namespace fs = std::filesystem;

fs::path copy_artifact(const fs::path& file, const fs::path& folder, const std::string& name) {
  const fs::path inside(name);
  if (name.empty() || inside.is_absolute() || std::find(inside.begin(), inside.end(), "..") != inside.end())
    throw ConfigError("MU457", log::str("the artifact ", in_quotes(file.string()), " cannot have the name ",
                                        in_quotes(name), "; give a relative path without '..'"));
  const auto copy = folder / "artifacts" / inside;
  std::error_code error;
  fs::create_directories(copy.parent_path(), error);
  if (!error) fs::remove_all(copy, error);
  if (!error) fs::copy(file, copy, fs::copy_options::recursive, error);
  if (error)
    throw ConfigError(
        "MU457", log::str("the artifact ", in_quotes(file.string()), " cannot be copied to ", in_quotes(copy.string()),
                          " (", error.message(), "); give an existing file or folder, and a disk with room for it"));
  return copy;
}

}  // namespace muster::track
