#include "config_writer.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "muster/base/detail/letter_case.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

/// Python's reader takes these words without quotes for a truth value or for nothing.
bool is_word_of_yaml(const std::string& text) {
  const auto word = lower_case(text);
  for (const char* one : {"", "no", "yes", "on", "off", "y", "n", "null", "~"})
    if (word == one) return true;
  return false;
}

std::string yaml_text(const std::string& text) {
  const bool plain = !is_word_of_yaml(text) && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/' || c == '+';
  });
  if (plain && text.front() != '-' && text.front() != '.') return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

}  // namespace

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
    text += (outer.empty() ? "  " + key : "    " + key.substr(dot + 1)) + ": " + yaml_text(value) + "\n";
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
