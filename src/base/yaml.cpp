#include "base/yaml.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <ranges>
#include <set>

#include <yaml-cpp/yaml.h>

#include "base/descriptor.h"
#include "base/options_text.h"
#include "base/text.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

constexpr int kDeepest = 8;  // nesting limit of sections, since a YAML alias may make a section contain itself

/// In a list of pairs (fsdp: [stage=full, "unit_classes=A,B"]) the commas belong to the pair.
bool is_pair(std::string_view item) {
  const auto sign = item.find('=');
  return sign != std::string_view::npos && sign > 0 &&
         std::all_of(item.begin(), item.begin() + static_cast<std::ptrdiff_t>(sign),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

/// Where a value is, for messages: "run.yaml line 3".
std::string place_of(const std::string& file, const YAML::Mark& mark) {
  return file + " line " + std::to_string(mark.line + 1);
}

/// Throws with the form that is wanted.
[[noreturn]] void refuse_form(const std::string& where, const std::string& what) {
  throw ConfigError("MU004", where + ": " + what + "; write 'key: value', 'key: [a, b]' or a section of such lines");
}

/// A scalar or a list of scalars as one text, see split_items(); null is "".
std::string read_value(const YAML::Node& node, const std::string& where) {
  if (node.IsNull()) return "";
  if (node.IsScalar()) return node.Scalar();
  if (!node.IsSequence()) refuse_form(where, "a value or a list of values is wanted here");
  std::string result;
  for (const auto& item : node) {
    if (!item.IsScalar()) refuse_form(where, "a list may only hold plain values");
    const auto& word = item.Scalar();
    result += (result.empty() ? "" : ",") + (is_pair(word) ? word : list_item(word));
  }
  // The comma tells `devices: [3]`, the device with index 3, from `devices: 3`, three devices.
  return node.size() == 1 && !is_pair(node[0].Scalar()) ? result + "," : result;
}

/// The only document of the text, a map; null if it has none.
YAML::Node read_document(const std::string& text, const std::string& name) {
  YAML::Node result;
  for (const auto& document : YAML::LoadAll(text)) {
    if (document.IsNull()) continue;
    if (!result.IsNull()) refuse_form(name, "there are several documents, separated by '---', where one is wanted");
    if (!document.IsMap()) refuse_form(name, "the file holds no keys");
    result.reset(document);
  }
  return result;
}

void read_section(const YAML::Node& node, const std::string& file, RawOptions& into, const std::string& prefix = "",
                  int depth = 1) {
  for (const auto& entry : node) {
    std::string where = place_of(file, entry.first.Mark());
    if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
    const auto key = prefix + entry.first.Scalar();
    if (entry.second.IsMap() && depth == kDeepest) refuse_form(where, "sections are nested too deep");
    if (entry.second.IsMap()) read_section(entry.second, file, into, key + ".", depth + 1);
    else if (!into.emplace(key, Found{read_value(entry.second, where), where, entry.second.IsSequence()}).second)
      refuse_form(where, "'" + key + "' stands there twice");
  }
}

/// YAML readers in Python take these words, unquoted, for a boolean or null.
bool is_word_of_yaml(const std::string& text) {
  static constexpr std::string_view kWords[] = {"", "no", "yes", "on", "off", "y", "n", "null", "~"};
  return std::ranges::find(kWords, lower_case(text)) != std::end(kWords);
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

/// Double quotes, since single quotes would fold line ends.
std::string escaped(const std::string& text) {
  std::string result = "\"";
  for (const char c : text)
    if (is_control(c)) result += "\\x" + hex_text({&c, 1});
    else if (c == '"' || c == '\\') result += {'\\', c};
    else result += c;
  return result + '"';
}

}  // namespace

File File::parse(const std::string& text, const std::string& name, const std::string& only) {
  File result;
  try {
    for (const auto& entry : read_document(text, name)) {
      const auto where = place_of(name, entry.first.Mark());
      const auto key = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
      if (!only.empty() && key != only) {
        result.outside_.emplace(key, Found{"", where});
      } else if (!key.empty() && (entry.second.IsMap() || (key == only && entry.second.IsNull()))) {
        if (result.sections_.contains(key)) refuse_form(where, "'" + key + "' stands there twice");
        read_section(entry.second, name, result.sections_[key]);
      } else if (key == only && !only.empty()) {
        refuse_form(where, "'" + key + "' is a section, which holds keys");
      } else {
        YAML::Node single;
        single.force_insert(entry.first, entry.second);
        read_section(single, name, result.sections_[""]);
      }
    }
  } catch (const YAML::Exception& error) {
    throw ConfigError("MU004", place_of(name, error.mark) + ": no YAML: " + error.msg);
  }
  return result;
}

File File::of_section(const std::string& name, RawOptions texts) {
  File result;
  result.sections_.emplace(name, std::move(texts));
  return result;
}

const RawOptions& File::section(const std::string& name) const {
  static const RawOptions empty;
  auto found = sections_.find(name);
  return found == sections_.end() ? empty : found->second;
}

std::vector<std::string> File::sections() const {
  const auto names = std::views::keys(sections_);
  return {names.begin(), names.end()};
}

File File::changed(const std::string& name, const std::function<void(RawOptions&)>& change) const {
  File result = *this;
  if (const auto found = result.sections_.find(name); found != result.sections_.end()) change(found->second);
  return result;
}

namespace {

ValueForm form_of(const YAML::Node& node) {
  if (node.IsNull() || (!node.IsScalar() && node.size() == 0)) return ValueForm::none;
  if (node.IsScalar()) return ValueForm::plain;
  return std::all_of(node.begin(), node.end(), [](const auto& item) { return item.IsScalar(); }) ? ValueForm::list
                                                                                                 : ValueForm::nested;
}

struct Reader {
  const std::string& file;
  std::vector<FileValue> values;
  std::set<std::string> seen;

  void read(const YAML::Node& node, const std::string& prefix, int depth) {
    for (const auto& entry : node) {
      const auto where = place_of(file, entry.first.Mark());
      if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
      const auto key = prefix + entry.first.Scalar();
      if (!seen.insert(key).second) refuse_form(where, "'" + key + "' stands there twice");
      if (entry.second.IsMap() && depth == kDeepest) refuse_form(where, "sections are nested too deep");
      if (entry.second.IsMap() && entry.second.size() > 0) {
        read(entry.second, key + ".", depth + 1);
        continue;
      }
      const auto form = form_of(entry.second);
      const bool has_text = form == ValueForm::plain || form == ValueForm::list;
      values.push_back({key, {has_text ? read_value(entry.second, where) : "", where, form == ValueForm::list}, form});
    }
  }
};

constexpr int kMostSilence = 60000;  // longest wait for more from a pipe that has a writer, in milliseconds

[[noreturn]] void refuse_pipe(const std::string& path, const std::string& why) {
  throw ConfigError("MU004",
                    "the option file '" + path + "' is a pipe " + why + "; start its writer first, or name a file");
}

}  // namespace

std::string read_text(const std::string& path) {
  // Non-blocking: otherwise open() would wait without limit for a named pipe that has no writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  char bytes[1 << 16];
  for (;;) {
    const auto size = ::read(file.get(), bytes, sizeof bytes);
    pollfd more{file.get(), POLLIN, 0};
    if (size > 0) text.append(bytes, static_cast<size_t>(size));
    else if (size == 0) break;
    else if (errno == EAGAIN && poll(&more, 1, kMostSilence) == 0) refuse_pipe(path, "whose writer writes nothing");
    else if (errno != EAGAIN && errno != EINTR)
      throw ConfigError("MU004", "cannot read the option file '" + path + "'; check its path and permissions");
  }
  struct stat status {};
  if (text.empty() && fstat(file.get(), &status) == 0 && S_ISFIFO(status.st_mode))
    refuse_pipe(path, "to which nobody writes");
  return text;
}

std::vector<FileValue> read_file_values(const std::string& path) { return parse_file_values(read_text(path), path); }

std::vector<FileValue> parse_file_values(const std::string& text, const std::string& name) {
  Reader reader{name, {}, {}};
  try {
    reader.read(read_document(text, name), "", 1);
  } catch (const YAML::Exception& error) {
    throw ConfigError("MU004", place_of(name, error.mark) + ": no YAML: " + error.msg);
  }
  return std::move(reader.values);
}

std::string yaml_text(const std::string& text) {
  if (std::any_of(text.begin(), text.end(), is_control)) return escaped(text);
  const bool plain = !is_word_of_yaml(text) && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/' || c == '+';
  });
  const bool number = text.size() > 1 && std::isdigit(static_cast<unsigned char>(text[1]));
  if (plain && ((text.front() != '-' && text.front() != '.') || number)) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

}  // namespace muster::options
