#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/environment.h"

namespace muster::options {

/// A value as text, with its place: "flag --log-dir", "variable MUSTER_LOG_DIR", "run.yaml line 3".
struct Found {
  std::string text;
  std::string place;
  bool is_list = false;  ///< a list in the file
};

/// Values by the name of their option.
using RawOptions = std::map<std::string, Found>;

/// A YAML file of options: keys with plain values, lists of them, or sections of such keys. Within a section,
/// `outer: {inner: 1}` is the key "outer.inner". A list becomes one text (see split_items()), which ends with a comma
/// if the list has one item.
class File {
 public:
  File() = default;
  /// Reads the options from the text of a file, whose name messages give. `only`: the section to read, with all other
  /// keys in outside(); empty: reads the whole file.
  /// Throws: ConfigError (MU004), naming file and line, if the text does not have that form.
  static File parse(const std::string& text, const std::string& name, const std::string& only = "");

  /// The values of one section ("" for the top), by key.
  const RawOptions& section(const std::string& name) const;
  std::vector<std::string> sections() const;
  /// The top-level keys that were not read, with their places and empty texts.
  const RawOptions& outside() const noexcept { return outside_; }
  /// A file with these values in one section.
  static File of_section(const std::string& name, RawOptions texts);
  /// Returns a copy in which `change` has changed one section.
  File changed(const std::string& section, const std::function<void(RawOptions&)>& change) const;

 private:
  std::map<std::string, RawOptions> sections_;
  RawOptions outside_;
};

// Reads option structs. Each field is described once, in a table next to its struct; flags, `--help`, environment
// variables, the YAML file and the reference page all come from that table.
// Order of precedence: a flag, the flag --options, MUSTER_OPTIONS, a single variable, the file, the default. See
// docs/decisions/0079-options-are-described-once.md.

/// Converts text to a value and back, for one type of field. `read` returns "", or for invalid `text` a description of
/// valid text. Specialise it to use another type in option structs.
template <class T>
struct Value;

/// `kType` is the type on the reference page. A type that accepts other values besides true and false sets kIsSwitch.
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a type
#define MUSTER_OPTION_VALUE(T, words)                           \
  template <>                                                   \
  struct Value<T> {                                             \
    static constexpr const char* kType = words;                 \
    static std::string read(const std::string& text, T& value); \
    static std::string write(const T& value);                   \
  }
MUSTER_OPTION_VALUE(bool, "true or false");  ///< in any spelling that read_bool() knows
MUSTER_OPTION_VALUE(int, "whole number");
MUSTER_OPTION_VALUE(int64_t, "whole number");
MUSTER_OPTION_VALUE(uint64_t, "whole number");
MUSTER_OPTION_VALUE(double, "number");
MUSTER_OPTION_VALUE(std::string, "text");                    ///< quotes are removed, as from an item of a list
MUSTER_OPTION_VALUE(std::chrono::milliseconds, "duration");  ///< "30" (seconds), "250ms", "5min", "0:30:00"
MUSTER_OPTION_VALUE(std::vector<std::string>, "list");       ///< "a,b,c", see split_items(); or a list in the file
#undef MUSTER_OPTION_VALUE
// NOLINTEND(bugprone-macro-parentheses)

/// All properties of an option except its value.
struct Description {
  std::string name = {};                  ///< key in the file; the flag is the same with dashes: "log_dir" is --log-dir
  std::string help = {};                  ///< one sentence, no full stop
  std::string unit = {};                  ///< "seconds", "bytes"; may be empty
  std::string variable = {};              ///< environment variable; empty: none
  std::vector<std::string> aliases = {};  ///< other names, accepted wherever `name` is
  std::string tested_by = {};             ///< the test of the option's effect: "Suite.Case"
  std::vector<std::string> other_tools = {};  ///< variables of other tools; they override only defaults
  bool takes_list = false;                    ///< a text that may be a list in the file
  std::string type = {};                      ///< filled in from the field: "whole number"; "" if code_only
  std::string default_text = {};              ///< filled in from the struct's initialiser
  bool is_switch = false;                     ///< has flags --name and --no-name, which need no value
  bool code_only = false;                     ///< cannot be set by text: a callback, a predicate, a type

  std::string flag() const;
  /// Whether this is the option's name or an alias.
  bool is_named(std::string_view word) const;
  /// Whether "none" leaves the value unset.
  bool may_be_none() const { return type.ends_with("none"); }
};

/// The option with this name or alias; nullptr if there is none.
const Description* find_option(const std::vector<Description>& table, std::string_view name);

/// One field of `Struct`. An option that only code can set is never read, and is written as "".
template <class Struct>
struct Option {
  Description description;
  std::function<std::string(Struct&, const std::string&)> read;  ///< as Value<T>::read
  std::function<std::string(const Struct&)> write;
};

/// Describes a part of `Struct`, which `get` returns by reference. A type without Value<T> can be set only by code.
template <class Struct, class Get>
Option<Struct> option_at(std::string name, Get get, Description description) {
  using T = std::remove_cvref_t<decltype(get(std::declval<Struct&>()))>;
  description.name = std::move(name);
  description.code_only = !requires { Value<T>::kType; };
  if constexpr (requires { Value<T>::kType; }) {
    const Struct defaults{};
    description.type = Value<T>::kType;
    description.default_text = Value<T>::write(get(defaults));
    description.is_switch = std::is_same_v<T, bool> || requires { Value<T>::kIsSwitch; };
    return {std::move(description),
            [get](Struct& values, const std::string& text) { return Value<T>::read(text, get(values)); },
            [get](const Struct& values) { return Value<T>::write(get(values)); }};
  } else {
    description.variable.clear();
    return {std::move(description), [](Struct&, const std::string&) { return std::string("a value set in code"); },
            [](const Struct&) { return std::string(); }};
  }
}

/// The fields of a struct, in the order of the struct. `section` is the key of the file that contains them; empty: the
/// top level.
template <class Struct>
struct Table {
  std::string section;
  std::vector<Option<Struct>> options;

  std::vector<Description> descriptions() const {
    std::vector<Description> result;
    result.reserve(options.size());
    for (const auto& option : options) result.push_back(option.description);
    return result;
  }
};

/// The sources of options, in descending precedence.
struct Sources {
  std::map<std::string, std::string> flags = {};  ///< keys are names of options, not of flags
  RawOptions flag_line = {};                      ///< the flag --options, see read_line()
  RawOptions line = {};                           ///< MUSTER_OPTIONS
  Environment variables = {};
  File file = {};
};

/// Returns `texts` with aliases replaced by the names of the options; keys that are not described stay.
/// Throws: ConfigError (MU305) if two keys name one option.
RawOptions without_aliases(const std::vector<Description>& table, const RawOptions& texts);

/// Returns the values set for the described options, by name, each from the source of highest precedence.
/// Throws: ConfigError (MU001), listing the known names and the nearest one, for an unknown key in the section or in a
/// line; (MU305) as without_aliases().
RawOptions find(const std::vector<Description>& table, const std::string& section, const Sources& sources);

/// Throws: ConfigError (MU002), naming option, value, place and the expected form.
[[noreturn]] void refuse(const Description& option, const Found& found, const std::string& wanted);
/// Throws: ConfigError (MU171), naming the option, the program's value, and value and place of the request.
[[noreturn]] void contradict(const Description& option, const std::string& in_code, const Found& found);

/// The values read, and the source of each value that is not a default.
template <class Struct>
struct Reading {
  std::map<std::string, std::string> places;
  Struct values;
};

/// Reads the texts that `table` describes, and ignores others, which belong to other tables. Throws: ConfigError
/// (MU002).
template <class Struct>
Reading<Struct> read_texts(const Table<Struct>& table, const RawOptions& texts) {
  Reading<Struct> result;
  for (const auto& option : table.options) {
    auto found = texts.find(option.description.name);
    if (found == texts.end()) continue;
    auto wanted = option.read(result.values, found->second.text);
    if (!wanted.empty()) refuse(option.description, found->second, wanted);
    result.places[option.description.name] = found->second.place;
  }
  return result;
}

/// Applies the launcher's requests: they replace the program's defaults, and must not contradict other values of the
/// program.
/// Throws: ConfigError (MU171) for a contradiction, (MU002) for a value that cannot be read.
template <class Struct>
void follow(const Option<Struct>& option, const Found& found, Struct& values) {
  auto requested = values;
  if (auto wanted = option.read(requested, found.text); !wanted.empty()) refuse(option.description, found, wanted);
  const auto in_code = option.write(values);
  if (in_code == option.write(requested)) return;
  if (in_code != option.description.default_text) contradict(option.description, in_code, found);
  values = std::move(requested);
}

}  // namespace muster::options
