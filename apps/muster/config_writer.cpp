#include "config_writer.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/yaml.h"
#include "muster/base/error.h"

namespace muster::cli {

std::string config_text(const ConfigKeys& keys) {
  std::string text =
      "# Written by `muster config`; read by `muster launch`, and by `muster run --config`.\n"
      "# docs/howto/config.md says which keys there are; `muster config show` what they ask for.\nrun:\n";
  std::string section;
  for (const auto& [key, value] : keys) {
    const auto dot = key.find('.');
    const auto outer = dot == std::string::npos ? "" : key.substr(0, dot);
    if (!outer.empty() && outer != section) text += "  " + outer + ":\n";
    section = outer;
    text += (outer.empty() ? "  " + key : "    " + key.substr(dot + 1)) + ": " + options::yaml_text(value) + "\n";
  }
  return text;
}

void write_config(const std::string& path, const ConfigKeys& keys) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (const auto folder = fs::path(path).parent_path(); !folder.empty()) fs::create_directories(folder, error);
  const auto unfinished = path + ".unfinished";
  std::ofstream file(unfinished);
  file << config_text(keys);
  file.close();
  if (file) fs::rename(unfinished, path, error);
  if (file && !error) return;
  fs::remove(unfinished, error);
  throw ConfigError("MU484", "cannot write the configuration file '" + path +
                                 "'; check the permissions of its folder, or name another file: --config_file FILE");
}

}  // namespace muster::cli
