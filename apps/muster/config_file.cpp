#include "config_file.h"

#include <algorithm>
#include <cstdio>

#include "muster/base/detail/known_names.h"
#include "muster/base/detail/listing.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

using options::File;

bool is_option(const std::vector<options::Description>& known, const std::string& key) {
  return std::any_of(known.begin(), known.end(), [&](const auto& option) {
    return option.name == key || std::count(option.aliases.begin(), option.aliases.end(), key) > 0;
  });
}

/// Whose file it is, as far as its keys say.
std::string owner_of(const File& file) {
  const auto has = [&](const char* key) { return file.outside().contains(key); };
  if (has("compute_environment") || has("distributed_type")) return "; it looks like a file of `accelerate config`";
  if (has("trainer")) return "; it looks like a file of LightningCLI";
  return "";
}

[[noreturn]] void refuse_file(const File& file, const std::string& path, const std::string& section) {
  std::vector<std::string> keys;
  for (const auto& [key, found] : file.outside()) keys.push_back(key);
  const auto nearest = nearest_name(section, keys);
  throw ConfigError("MU304", path + " has no section `" + section + "`, which alone is read" + owner_of(file) +
                                 (keys.empty() ? "" : "; its keys are " + joined(keys, {}, kMostListed)) +
                                 (nearest.empty() ? "" : "; nearest is '" + nearest + "'") + "; begin it with `" +
                                 section + ":` and indent the options below");
}

}  // namespace

File read_config(const std::string& path, const std::string& section, const std::vector<options::Description>& known) {
  auto file = File::load(path, section);
  const auto sections = file.sections();
  if (std::find(sections.begin(), sections.end(), section) == sections.end()) refuse_file(file, path, section);
  for (const auto& [key, found] : file.outside())
    if (is_option(known, key))
      throw ConfigError("MU304", found.place + ": option '" + key + "' stands outside of section `" + section +
                                     "`, which alone is read; indent it below `" + section + ":`");
  if (!file.outside().empty())
    std::fprintf(stderr, "muster: %s: only section `%s` is read; without effect: %s\n", path.c_str(), section.c_str(),
                 joined(
                     file.outside(), [](const auto& entry) { return std::string_view(entry.first); }, kMostListed)
                     .c_str());
  return file;
}

}  // namespace muster::cli
