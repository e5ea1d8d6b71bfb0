#include "config_file.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/text.h"
#include "deepspeed_file.h"
#include "muster/base/error.h"
#include "options/launcher_fields.h"
#include "options/lightning_config.h"

namespace muster::cli {
namespace {

using options::File;
using options::RawOptions;

[[noreturn]] void refuse_file(const RawOptions& outside, const std::string& path, const std::string& section) {
  std::vector<std::string> keys;
  for (const auto& [key, found] : outside) keys.push_back(key);
  const auto nearest = nearest_name(section, keys);
  throw ConfigError("MU304", path + " has no section `" + section +
                                 "`, and is not a file of `accelerate config` or of LightningCLI" +
                                 (keys.empty() ? "" : "; its keys are " + joined(keys, {}, kMostListed)) +
                                 (nearest.empty() ? "" : "; nearest is '" + nearest + "'") + "; begin it with `" +
                                 section + ":` and indent the options below");
}

void refuse_options_outside(const RawOptions& outside, const std::string& section,
                            const std::vector<options::Description>& known) {
  for (const auto& [key, found] : outside)
    if (options::find_option(known, key))
      throw ConfigError("MU304", found.place + ": option '" + key + "' stands outside of section `" + section +
                                     "`, which alone is read; indent it below `" + section + ":`");
}

/// The tool that the file belongs to, by its keys; Muster if they do not tell.
FileKind kind_of(const File& file, const std::string& path, const std::string& section) {
  const auto sections = file.sections();
  if (std::find(sections.begin(), sections.end(), section) != sections.end()) return FileKind::muster;
  const auto has = [&](std::string_view key) { return file.outside().contains(std::string(key)); };
  if (has("compute_environment") || has("distributed_type")) return FileKind::accelerate;
  if (has("trainer") || std::any_of(std::begin(trainer::kSubcommands), std::end(trainer::kSubcommands), has))
    return FileKind::lightning;
  refuse_file(file.outside(), path, section);
}

ConfigFile read_ours(const File& file, const std::string& path, const std::string& section,
                     const std::vector<options::Description>& known) {
  refuse_options_outside(file.outside(), section, known);
  ConfigFile result{.path = path};
  if (!file.outside().empty())
    result.notes.push_back(
        path + ": only section `" + section + "` is read; without effect: " +
        joined(
            file.outside(), [](const auto& entry) { return std::string_view(entry.first); }, kMostListed));
  result.file = file.changed(section, [&](RawOptions& texts) { result.accelerate = extract_accelerate(texts, known); });
  return result;
}

ConfigFile read_lightning(const std::string& path, const std::vector<options::FileValue>& values,
                          const std::string& section, const std::vector<options::Description>& known) {
  auto request = trainer::translate_lightning(values, known);
  ConfigFile result{.path = path, .kind = FileKind::lightning};
  result.file = File::of_section(section, std::move(request.options));
  if (!request.of_program.empty())
    result.notes.push_back(path + ": of a file of LightningCLI, `trainer` is followed; left to the program: " +
                           joined(request.of_program, {}, kMostListed));
  if (!request.without_effect.empty())
    result.notes.push_back(path + ": only code can give these, so they have no effect: " +
                           joined(request.without_effect, {}, kMostListed));
  return result;
}

}  // namespace

ConfigFile read_config(const std::string& path, const std::string& section,
                       const std::vector<options::Description>& known) {
  // Read once: it may be a pipe.
  const auto text = options::read_text(path);
  auto file = File::parse(text, path, section);
  switch (kind_of(file, path, section)) {
    case FileKind::muster: return read_ours(file, path, section, known);
    case FileKind::lightning: return read_lightning(path, options::parse_file_values(text, path), section, known);
    case FileKind::accelerate: break;
  }
  ConfigFile result{.path = path, .kind = FileKind::accelerate};
  result.accelerate = accelerate_values(path, options::parse_file_values(text, path));
  result.file = File::of_section(section, {});
  return result;
}

Translated translated_config(const ConfigFile& config, const RawOptions& flags, const OwnChoices& own_choices) {
  const auto& section = run_option_table().section;
  const auto origin = config.kind == FileKind::accelerate ? AccelerateOrigin::own_file : AccelerateOrigin::among_ours;
  auto own = own_choices;
  own.strategy = own.strategy || config.file.section(section).contains("strategy");
  auto values = merged_accelerate(flags, config.accelerate);
  DeepspeedRequest deepspeed{std::move(values)};
  if (has_deepspeed_file(deepspeed.accelerate)) deepspeed = with_deepspeed_file(std::move(deepspeed.accelerate));
  auto request = translate_accelerate(deepspeed.accelerate, origin, own);
  auto& without_effect = request.without_effect;
  without_effect.insert(without_effect.end(), deepspeed.without_effect.begin(), deepspeed.without_effect.end());
  Translated result;
  RawOptions in_file;
  for (auto& [name, found] : request.options) (is_flag(found) ? result.from_flags : in_file)[name] = std::move(found);
  const auto known = run_option_table().descriptions();
  const auto file = config.path.empty() ? File::of_section(section, {}) : config.file;
  result.file = file.changed(section, [&](RawOptions& texts) {
    for (auto& [name, found] : in_file) {
      const auto set = options::without_aliases(known, texts);
      if (const auto other = set.find(name); other != set.end())
        throw ConfigError(
            "MU305", found.place + " and " + other->second.place + " both set option '" + name + "'; keep one of them");
      texts[name] = std::move(found);
    }
  });
  if (const auto note = note_without_effect(request.without_effect); !note.empty()) result.notes.push_back(note);
  return result;
}

}  // namespace muster::cli
