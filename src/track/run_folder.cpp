#include "track/run_folder.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/log.h"
#include "base/shown.h"
#include "muster/base/error.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStart = "version_";

[[noreturn]] void refuse(const fs::path& folder, const std::error_code& error) {
  throw ConfigError("MU421",
                    log::str("the folder ", in_quotes(folder.string()), " for the run's values cannot be made (",
                             error.message(), "); give another root"));
}

void check_inside(const char* option, const std::string& value) {
  const fs::path path(value);
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end())
    throw ConfigError("MU425", log::str(option, " ", in_quotes(value),
                                        " would lead out of the root; it is a relative path without '..'"));
}

/// N of "version_N"; -1 for any other name.
int64_t number_in(const std::string& name) {
  int64_t number = -1;
  if (!name.starts_with(kStart)) return -1;
  const auto* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kStart.size(), end, number);
  return error == std::errc() && rest == end ? number : -1;
}

int64_t next_version(const fs::path& folder) {
  int64_t highest = -1;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    highest = std::max(highest, number_in(entry->path().filename().string()));
  if (error) refuse(folder, error);
  return highest + 1;
}

}  // namespace

fs::path make_run_folder(const RunFolderOptions& options) {
  check_inside("name", options.name);
  check_inside("version", options.version);
  const auto parent = options.name.empty() ? options.root : options.root / options.name;
  std::error_code error;
  fs::create_directories(options.version.empty() ? parent : parent / options.version, error);
  if (error) refuse(parent, error);
  if (!options.version.empty()) return parent / options.version;
  for (auto version = next_version(parent);; ++version) {
    const auto folder = parent / (std::string(kStart) + std::to_string(version));
    if (fs::create_directory(folder, error)) return folder;
    if (error) refuse(folder, error);
  }
}

}  // namespace muster

namespace muster::track {

std::filesystem::path copy_artifact(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name) {
  const std::filesystem::path inside(name);
  if (name.empty() || inside.is_absolute() || std::find(inside.begin(), inside.end(), "..") != inside.end())
    throw ConfigError("MU457", log::str("the artifact ", in_quotes(file.string()), " cannot have the name ",
                                        in_quotes(name), "; give a relative path without '..'"));
  const auto copy = folder / "artifacts" / inside;
  std::error_code error;
  std::filesystem::create_directories(copy.parent_path(), error);
  if (!error) std::filesystem::remove_all(copy, error);
  if (!error) std::filesystem::copy(file, copy, std::filesystem::copy_options::recursive, error);
  if (error)
    throw ConfigError(
        "MU457", log::str("the artifact ", in_quotes(file.string()), " cannot be copied to ", in_quotes(copy.string()),
                          " (", error.message(), "); give an existing file or folder, and a disk with room for it"));
  return copy;
}

}  // namespace muster::track
