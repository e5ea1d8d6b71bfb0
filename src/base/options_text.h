#pragma once  // for other rooms

#include <array>
#include <cstddef>
#include <iterator>

#include "muster/base/detail/options.h"
#include "muster/base/word.h"

/// Lists in one text: a,b. An item with a comma is put in double quotes, and a double quote in it is doubled:
/// "a{1,2}",b is a list of two items.
namespace muster::options {

/// The parts of `text` between commas outside quotes, trimmed, with their quotes. A quote may open at the first
/// character of an item or, with `in_pairs`, after the first '=' of an item. An unclosed quote reaches to the end.
std::vector<std::string> split_items(std::string_view text, bool in_pairs = false);

/// The item without its quotes; an unquoted item is returned unchanged. nullopt if an item starts with a quote but does
/// not end with the closing one.
std::optional<std::string> unquoted(std::string_view item);

/// The item as written in a list: quoted if needed.
std::string list_item(std::string_view item);

// All options of a program in one line: the form in which a launcher forwards them to its ranks.

inline constexpr const char* kLineVariable = "MUSTER_OPTIONS";

/// The environment variable of a program's option: MUSTER_FSDP_STAGE for "fsdp.stage".
std::string variable_of(const std::string& name);

/// The option's name in a flag, with or without a value: "log_dir" for "--log-dir=x".
std::string name_of_flag(const std::string& flag);

/// Reads "precision=bf16,fsdp.stage=full" (a word without '=' continues the list before it; quotes as in
/// split_items()), or a line of YAML or JSON: {precision: bf16, fsdp: {stage: full, unit_classes: [Block, Head]}}.
/// `place` names the source in messages, unless the line itself says where a value was set.
/// Throws: ConfigError (MU300) for a word that is not name=value, (MU305) for a duplicate name, (MU004) for text that
/// is not YAML.
RawOptions read_line(const std::string& line, const std::string& place = std::string("variable ") + kLineVariable);

/// The JSON line from which read_line() restores texts and places; "" for no texts. The places are under the key
/// set_by.
/// Throws: ConfigError (MU308) for a text that is not UTF-8.
std::string write_line(const RawOptions& texts);

/// Splits "a=1,b=x,y" into a: "1" and b: "x,y". `place` becomes the place of every part; `prefix` is put before each
/// name.
/// Throws: ConfigError (`error`) for a word that is not name=value and for an unclosed quote, (MU305) for a duplicate
/// name.
RawOptions split_pairs(const std::string& text, const std::string& place, const std::string& prefix = "",
                       const char* error = "MU300");

/// Replaces the text of the option `name` by the options in it: fsdp: "stage=full" becomes fsdp.stage: "full". Aliases
/// from `table` are replaced by names. Names already in `texts` keep their values.
/// Throws: ConfigError (`error`) as split_pairs(), (MU305) as without_aliases().
void expand(RawOptions& texts, const std::string& name, const std::vector<Description>& table = {},
            const char* error = "MU300");

/// Whether `text` is the option's default. A boolean may have any spelling that read_bool() knows.
bool is_default(const Description& option, const std::string& text);

/// A Markdown table of these options, for the reference page.
std::string to_markdown(const std::vector<Description>& table);

// Tables of options.

/// The path of a field, "project.directory", and an accessor for it, which is ill-formed (SFINAE) for a struct without
/// the field: two arguments of one call.
#define MUSTER_FIELD(path) #path, [](auto& options) -> decltype((options.path)) { return options.path; }

/// Collects the options of a struct, each of which has a variable of its own: add(MUSTER_FIELD(log_dir), "folder for a
/// file per rank", "Console.EachRankHasALogFile").
template <class Struct>
struct OptionsOf {
  std::string prefix = {};  ///< that of the names in variables: "fsdp."
  std::vector<Option<Struct>> options = {};

  template <class Get>
  void add(const std::string& name, Get get, std::string help, const char* tested_by, Description rest = {}) {
    rest.help = std::move(help);
    rest.tested_by = tested_by;
    rest.variable = variable_of(prefix + name);
    options.push_back(option_at<Struct>(name, get, std::move(rest)));
  }
  Table<Struct> table(const char* section = "") && { return {section, std::move(options)}; }
};

// The text of a Word.

/// The names as "one of a, b, c", null-terminated. A list that is too long does not compile.
template <class Words>
consteval auto one_of() {
  std::array<char, 128> text{};
  std::size_t end = 0;
  for (const std::string_view& word : Words::kAll)
    for (const std::string_view part : {std::string_view(&word == Words::kAll ? "one of " : ", "), word})
      end += part.copy(text.data() + end, part.size());
  text.at(end) = '\0';
  return text;
}

/// The Value specialization for a Word: `template <> struct Value<Mode> : WordValue<ModeWords> {};`.
template <class Words>
struct WordValue {
  static constexpr auto kText = one_of<Words>();
  static constexpr const char* kType = kText.data();
  static std::string read(const std::string& text, Word<Words>& value) {
    const auto word = Word<Words>::parse(text);
    if (word) value = *word;
    return word ? "" : kType;
  }
  static std::string write(const Word<Words>& value) { return std::string(value.text()); }
};

}  // namespace muster::options
