#include "foreign_flags.h"

#include <algorithm>

#include "base/options_text.h"
#include "muster/base/error.h"
#include "options/words.h"

namespace muster::cli {
namespace {

using options::name_of_flag;

const options::Description* option_of(const std::string& word, const std::vector<options::Description>& known) {
  if (!word.starts_with("--")) return nullptr;
  const auto name = name_of_flag(word);
  for (const auto& option : known) {
    const auto own = name_of_flag(option.flag());
    const bool negated = option.is_switch && name == "no_" + own;
    if (option.code_only) continue;
    if (negated || name == own || std::find(option.aliases.begin(), option.aliases.end(), name) != option.aliases.end())
      return &option;
  }
  return nullptr;
}

bool needs_value(const options::Description* option) { return option && !option->is_switch; }

bool places_ranks(const options::Description& option) {
  static const char* const names[] = {"devices", "main_address", "main_port", "node_rank", "nodes"};
  return std::find(std::begin(names), std::end(names), option.name) != std::end(names);
}

}  // namespace

std::string our_name_for(const std::string& flag) { return options::spelling_here(name_of_flag(flag)); }

Split split_command(const Arguments& command, bool bare, const std::vector<options::Description>& known) {
  Split split;
  split.program = command;
  if (command.empty()) return split;
  bool all = bare && command.size() > 1, one_places = false, only_config = true;
  for (auto word = command.begin() + 1; word != command.end(); ++word) {
    const auto* option = option_of(*word, known);
    const bool complete = option && (option->is_switch || word->find('=') != std::string::npos);
    all = all && complete;
    one_places = one_places || (option && places_ranks(*option));
    if (option) split.resemble_our_flags.push_back(*word);
    only_config = only_config && (!option || option->name == "config");
  }
  // Many programs have their own --config.
  if (only_config) split.resemble_our_flags.clear();
  if (!all || !one_places) return split;
  split.ours = {command.begin() + 1, command.end()};
  split.program.resize(1);
  split.resemble_our_flags.clear();
  return split;
}

Arguments with_values(const Arguments& arguments, const std::vector<options::Description>& known) {
  Arguments result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& word = arguments[i];
    if (word == "--" || !word.starts_with("-")) {
      result.insert(result.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    const auto* option = option_of(word, known);
    const auto sign = word.find('=');
    const bool ends_in_sign = sign != std::string::npos && sign + 1 == word.size();
    if (option && option->is_switch && ends_in_sign)
      throw UsageError("MU307", "flag '" + word + "' has no value; write " + option->flag() + ", or no such flag");
    result.push_back(needs_value(option) && ends_in_sign ? word.substr(0, sign) : word);
    if (needs_value(option) && ends_in_sign) result.emplace_back();
    if (!needs_value(option) || sign != std::string::npos) continue;
    if (++i == arguments.size() || arguments[i] == "--" || option_of(arguments[i], known))
      throw UsageError("MU307", "flag '" + word + "' has no value" +
                                    (i < arguments.size() ? ": after it stands '" + arguments[i] + "'" : "") +
                                    "; write " + word + "=VALUE (see muster run --help)");
    result.push_back(arguments[i]);
  }
  return result;
}

}  // namespace muster::cli
