#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "command_flags.h"
#include "commands.h"
#include "muster/base/error.h"
#include "run_flags.h"

namespace muster::cli {
namespace {

using options::Description;

/// The offered flags: with hyphens and, for a switch that is on, its negation.
std::vector<std::string> offered(const Description& option) {
  std::vector<std::string> words{spellings(option).front()};
  if (option.is_switch && option.default_text == "true") words.push_back(negations(option).front());
  return words;
}

std::string escaped(const std::string& text, std::string_view special) {
  std::string result;
  for (const char c : text) result += (special.find(c) == std::string_view::npos ? "" : "\\") + std::string(1, c);
  return result;
}

/// A quote would end a single-quoted shell string, so quotes are removed.
std::string without_quotes(std::string text) {
  std::erase(text, '\'');
  return text;
}

std::string bash_words(std::string_view command) {
  auto words = command_words(command);
  for (const auto& option : command_flags(command))
    for (auto& word : offered(option)) words.push_back(std::move(word));
  words.emplace_back("--help");
  return joined_by(" ", words);
}

std::string bash_script() {
  std::vector<std::string> names;
  for (const auto& command : commands()) names.emplace_back(command.name);
  std::string text =
      "# bash completion of muster; to load it: source <(muster completion bash)\n_muster() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" words=\"\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"" +
      joined_by(" ", names) +
      " --help --version\" -- \"$current\"))\n    return\n  fi\n  case \"${COMP_WORDS[1]}\" in\n";
  for (const auto& command : commands())
    text += "    " + std::string(command.name) + ") words=\"" + bash_words(command.name) + "\" ;;\n";
  return text +
         "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [[ \"$current\" == -* ]] || COMPREPLY+=($(compgen -f -- \"$current\"))\n}\n"
         "complete -o filenames -F _muster muster\n";
}

std::string zsh_flags(std::string_view command) {
  std::string text;
  for (const auto& option : command_flags(command))
    for (const auto& word : offered(option))
      text += " \\\n        '" + word + (option.is_switch ? "" : "=") + "[" +
              without_quotes(escaped(option.help, "[]:\\")) + "]" + (option.is_switch ? "" : ":value:_files") + "'";
  return text;
}

std::string zsh_script() {
  std::string text =
      "#compdef muster\n# zsh completion of muster; to load it: source <(muster completion zsh)\n_muster() {\n"
      "  local -a commands=(\n";
  for (const auto& command : commands())
    text += "    '" + std::string(command.name) + ":" + without_quotes(escaped(std::string(command.help), ":")) + "'\n";
  text +=
      "  )\n  if (( CURRENT == 2 )); then _describe command commands; compadd -- --help --version; return; fi\n"
      "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n";
  for (const auto& command : commands()) {
    const auto words = joined_by(" ", command_words(command.name));
    text += "    " + std::string(command.name) + ")\n      _arguments '--help[print the help]'" +
            zsh_flags(command.name) + " \\\n        '*:word:" + (words.empty() ? "_files" : "(" + words + ")") +
            "' ;;\n";
  }
  return text + "  esac\n}\nif [ \"$funcstack[1]\" = _muster ]; then _muster \"$@\"; else compdef _muster muster; fi\n";
}

std::string fish_script() {
  std::string text =
      "# fish completion of muster; to load it: muster completion fish | source\n"
      "complete -c muster -l help -d 'print the help'\n"
      "complete -c muster -n __fish_use_subcommand -l version -d 'print the version'\n";
  for (const auto& command : commands()) {
    const std::string name(command.name);
    text += "complete -c muster -n __fish_use_subcommand -f -a " + name + " -d '" +
            without_quotes(escaped(std::string(command.help), "\\")) + "'\n";
    const auto here = "complete -c muster -n '__fish_seen_subcommand_from " + name + "'";
    if (const auto words = command_words(name); !words.empty())
      text += here + " -f -a '" + joined_by(" ", words) + "'\n";
    for (const auto& option : command_flags(name))
      for (const auto& word : offered(option))
        text += here + " -l " + word.substr(2) + (option.is_switch ? "" : " -r") + " -d '" +
                without_quotes(escaped(option.help, "\\")) + "'\n";
  }
  return text;
}

}  // namespace

int complete(const Arguments& arguments) {
  const std::string shell = arguments.empty() ? "" : arguments.front();
  if (shell == "--help" || shell == "-h")
    return std::puts(
               "muster completion bash|zsh|fish: prints a script that completes muster's commands and flags\n"
               "bash: source <(muster completion bash); zsh: source <(muster completion zsh); fish: muster "
               "completion fish | source") < 0;
  if (arguments.size() != 1 || (shell != "bash" && shell != "zsh" && shell != "fish"))
    throw UsageError("MU006",
                     "muster completion knows no shell '" + shell + "'; the known ones are bash, zsh and fish");
  const auto script = shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
  return std::fputs(script.c_str(), stdout) < 0;
}

}  // namespace muster::cli
