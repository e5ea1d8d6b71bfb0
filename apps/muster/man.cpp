#include <cstdio>

#include "base/text.h"
#include "command_flags.h"
#include "commands.h"
#include "muster/base/error.h"
#include "muster/version.h"
#include "run_flags.h"

namespace muster::cli {
namespace {

/// The text for troff: literal hyphens, and no line that looks like a request.
std::string troff(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '-' ? "\\-" : c == '\\' ? "\\e" : std::string(1, c);
  return result.starts_with(".") || result.starts_with("'") ? "\\&" + result : result;
}

std::string title(const std::string& name) {
  return ".TH " + upper_case(name) + " 1 \"\" \"Muster " MUSTER_VERSION "\" \"Muster\"\n";
}

std::string flag_entry(const options::Description& option) {
  std::string flags;
  for (const auto& word : spellings(option)) flags += (flags.empty() ? "\\fB" : ", \\fB") + troff(word) + "\\fR";
  for (const auto& word : option.is_switch ? negations(option) : std::vector<std::string>())
    flags += ", \\fB" + troff(word) + "\\fR";
  if (!option.is_switch) flags += " \\fI" + troff(option.type.empty() ? "value" : option.type) + "\\fR";
  auto text = option.help + (option.unit.empty() ? "" : " (" + option.unit + ")");
  if (!option.default_text.empty()) text += "; default: " + option.default_text;
  if (!option.variable.empty()) text += "; variable: " + option.variable;
  return ".TP\n" + flags + "\n" + troff(text) + "\n";
}

std::string page_of(const Command& command) {
  const auto name = "muster-" + std::string(command.name);
  auto text = title(name) + ".SH NAME\n" + troff(name) + " \\- " + troff(command.help) + "\n.SH SYNOPSIS\n\\fBmuster " +
              troff(command.name) + "\\fR [OPTIONS]";
  const bool starts = command.name == "run" || command.name == "launch";
  text += starts ? " PROGRAM [ARGUMENTS]\n" : "\n";
  const auto flags = command_flags(command.name);
  if (!flags.empty()) text += ".SH OPTIONS\n";
  for (const auto& option : flags) text += flag_entry(option);
  const auto words = command_words(command.name);
  if (!words.empty() && command.name != "explain") {
    text += ".SH WORDS\n";
    for (const auto& word : words) text += troff(word) + "\n";
  }
  return text + ".SH SEE ALSO\n\\fBmuster\\fR(1), \\fBmuster " + troff(command.name) + " \\-\\-help\\fR\n";
}

std::string whole_page() {
  auto text = title("muster") +
              ".SH NAME\nmuster \\- one LibTorch training loop on any number of devices\n.SH SYNOPSIS\n\\fBmuster\\fR "
              "COMMAND [OPTIONS]\n.SH COMMANDS\n";
  for (const auto& command : commands())
    text += ".TP\n\\fBmuster " + troff(command.name) + "\\fR\n" + troff(command.help) + "\n";
  text += ".SH OPTIONS\n.TP\n\\fB\\-\\-help\\fR\nprint the help, of a command too\n";
  text += ".TP\n\\fB\\-\\-version\\fR\nprint the version\n";
  return text + ".SH SEE ALSO\n\\fBmuster man run\\fR and so on print the page of a command\n";
}

}  // namespace

int print_man_page(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (name == "--help" || name == "-h")
    return std::puts("muster man [COMMAND]: prints a manual page; to read it: muster man run | man -l -") < 0;
  if (name.empty()) return std::fputs(whole_page().c_str(), stdout) < 0;
  for (const auto& command : commands())
    if (command.name == name && arguments.size() == 1) return std::fputs(page_of(command).c_str(), stdout) < 0;
  throw UsageError("MU006", "there is no manual page of '" + name + "'; `muster --help` lists the commands");
}

}  // namespace muster::cli
