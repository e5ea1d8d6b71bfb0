#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/environment.h"

/// Reads option structs. Each field is described once, in a table beside its struct; flags, `--help`, environment
/// variables, the YAML file and the reference page all come from that table.
/// A flag overrides a variable, a variable overrides the file, and the file overrides the default.
namespace muster::options {

/// Converts text to a value and back, for one type of field. `read` returns "", or for invalid `text` what is expected.
/// Specialise it to use another type in option structs.
template <class T>
struct Value;

// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a type
#define MUSTER_OPTION_VALUE(T)                                  \
  template <>                                                   \
  struct Value<T> {                                             \
    static std::string read(const std::string& text, T& value); \
    static std::string write(const T& value);                   \
  }
MUSTER_OPTION_VALUE(bool);  ///< true, false, yes, no, on, off, 1, 0
MUSTER_OPTION_VALUE(int);
MUSTER_OPTION_VALUE(int64_t);
MUSTER_OPTION_VALUE(double);
MUSTER_OPTION_VALUE(std::string);
MUSTER_OPTION_VALUE(std::chrono::milliseconds);  ///< "250ms", "30s", "5min", "2h"
MUSTER_OPTION_VALUE(std::vector<std::string>);   ///< "a,b,c", or a list in the file
#undef MUSTER_OPTION_VALUE
// NOLINTEND(bugprone-macro-parentheses)

/// All properties of an option except its value.
struct Description {
  std::string name = {};          ///< key in the file; the flag is the same with dashes: "log_dir" is --log-dir
  std::string help = {};          ///< one sentence, no full stop
  std::string unit = {};          ///< "seconds", "bytes"; may be empty
  std::string variable = {};      ///< environment variable; empty: none
  std::string default_text = {};  ///< filled in from the struct's initialiser
  bool is_switch = false;         ///< a bool: flags --name and --no-name, without a value

  std::string flag() const;
};

/// One field of `Struct`.
template <class Struct>
struct Option {
  Description description;
  std::function<std::string(Struct&, const std::string&)> read;
};

/// A field and its description: option("log_dir", &RunOptions::log_dir, {.help = "..."}).
template <class Struct, class T>
Option<Struct> option(std::string name, T Struct::*field, Description description) {
  description.name = std::move(name);
  description.default_text = Value<T>::write(Struct{}.*field);
  description.is_switch = std::is_same_v<T, bool>;
  return {std::move(description),
          [field](Struct& values, const std::string& text) { return Value<T>::read(text, values.*field); }};
}

/// The fields of a struct, in the order of the struct. `section` is the key of the file that contains them; empty: the
/// top level.
template <class Struct>
struct Table {
  std::string section;
  std::vector<Option<Struct>> options;

  std::vector<Description> descriptions() const {
    std::vector<Description> result;
    for (const auto& option : options) result.push_back(option.description);
    return result;
  }
};

/// A value as text, and where it was found: "flag --log-dir", "variable MUSTER_LOG_DIR", "run.yaml line 3".
struct Found {
  std::string text;
  std::string place;
};

/// A YAML file of options: keys with plain values, lists of them, or sections of such keys.
class File {
 public:
  File() = default;
  /// Throws: ConfigError (MU004) if the file cannot be read or is not of that form, naming file and line.
  static File load(const std::string& path);
  /// The same from text; `name` replaces the file's name in messages.
  static File parse(const std::string& text, const std::string& name);

  /// The values of one section ("" for the top), by key.
  const std::map<std::string, Found>& section(const std::string& name) const;
  std::vector<std::string> sections() const;

 private:
  std::map<std::string, std::map<std::string, Found>> sections_;
};

/// The sources of options.
struct Sources {
  File file;
  std::map<std::string, std::string> flags;  ///< by name of the option, not of the flag
  Environment variables;
};

/// The values set for the described options, by name, each from the source of highest precedence.
/// Throws: ConfigError (MU001), listing the known names, for a key of the section that is not described.
std::map<std::string, Found> find(const std::vector<Description>& table, const std::string& section,
                                  const Sources& sources);

/// Throws: ConfigError (MU002) that names option, value, place and what is expected.
[[noreturn]] void refuse(const Description& option, const Found& found, const std::string& wanted);

/// The values read, and the source of each value that is not a default.
template <class Struct>
struct Reading {
  std::map<std::string, std::string> places;
  Struct values;
};

/// Reads a struct. Throws: ConfigError for an unknown key (MU001) or a value that cannot be read (MU002).
template <class Struct>
Reading<Struct> read(const Table<Struct>& table, const Sources& sources) {
  Reading<Struct> result;
  auto given = find(table.descriptions(), table.section, sources);
  for (const auto& option : table.options) {
    auto found = given.find(option.description.name);
    if (found == given.end()) continue;
    auto wanted = option.read(result.values, found->second.text);
    if (!wanted.empty()) refuse(option.description, found->second, wanted);
    result.places[option.description.name] = found->second.place;
  }
  return result;
}

/// The table of these options for the reference page, in Markdown.
std::string to_markdown(const std::vector<Description>& table);

}  // namespace muster::options
