#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/options_line.h"
#include "base/yaml_text.h"
#include "main_program.h"
#include "muster/trainer/detail/option_field.h"

namespace muster::trainer {
namespace {

std::vector<std::string> parts_of(const std::string& key) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = key.find('.', begin);
    parts.push_back(key.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

std::string value_of(const ConfigLine& line) {
  if (line.may_be_none && line.text == "none") return "null";
  if (!line.is_list) return options::yaml_text(line.text);
  std::vector<std::string> items;
  read_items(line.text, items);
  // Only the text form keeps an item that contains a comma in one piece.
  if (std::any_of(items.begin(), items.end(), [](const auto& item) { return item.find(',') != std::string::npos; }))
    return options::yaml_text(line.text);
  std::string result;
  for (const auto& item : items) result += (result.empty() ? "" : ", ") + options::yaml_text(item);
  return "[" + result + "]";
}

constexpr std::size_t kFlagColumns = 38;  // width of the flags' column in characters

constexpr const char* kCommandHelp[] = {"train, and validate meanwhile", "validate once, and print what was logged",
                                        "test once, and print what was logged",
                                        "predict, for callbacks and hooks that take predictions"};

/// One line, or two if the flag is long.
std::string row(const std::string& flag, const std::string& help) {
  const auto head = "  " + flag;
  const bool fits = head.size() + 1 < kFlagColumns;
  return head + (fits ? std::string(kFlagColumns - head.size(), ' ') : "\n" + std::string(kFlagColumns, ' ')) + help +
         "\n";
}

std::string section(const std::string& title, const std::string& rows) {
  return rows.empty() ? "" : "\n" + title + ":\n" + rows;
}

std::string commands_help(const MainProgram& program) {
  std::string rows;
  for (std::size_t stage = 0; stage < program.runs.size(); ++stage)
    if (program.runs[stage]) rows += row(std::string(kMainCommands[stage]), kCommandHelp[stage]);
  return rows;
}

std::string general_options() {
  return row("-h, --help", "print this; behind a command, the arguments of the Trainer, too") +
         row("-c, --config FILE",
             "a file with sections trainer, model and data, as LightningCLI's; of several the "
             "last counts") +
         row("--print_config", "print the file of this call, which --config reads back, and end") +
         row("--seed_everything", "number of the first random state, true (0) or false (leave it) [true]") +
         row("--ckpt_path",
             "the checkpoint to begin with: its folder, best, last or hpc; the module's options in a "
             "folder are defaults [null]");
}

std::string fields_help(const std::string& prefix, const std::vector<OptionField>& fields) {
  std::string rows;
  for (const auto& field : fields) {
    const auto key = prefix + "." + field.name;
    rows += row("--" + key, field.type + " [" + field.write() + "] {" + options::variable_of(key) + "}");
  }
  return rows;
}

std::string arguments_help(const std::vector<options::Description>& arguments) {
  std::string rows;
  for (const auto& argument : arguments)
    rows += row("--trainer." + argument.name,
                argument.help + (argument.unit.empty() ? "" : " (" + argument.unit + ")") + " [" +
                    argument.default_text + "]" + (argument.variable.empty() ? "" : " {" + argument.variable + "}"));
  return rows;
}

}  // namespace

std::string config_text(const std::vector<ConfigLine>& lines) {
  std::string text;
  std::vector<std::string> open;
  for (const auto& line : lines) {
    auto parts = parts_of(line.key);
    const auto name = parts.back();
    parts.pop_back();
    const auto same = static_cast<std::size_t>(
        std::mismatch(open.begin(), open.end(), parts.begin(), parts.end()).first - open.begin());
    for (auto depth = same; depth < parts.size(); ++depth) text += std::string(2 * depth, ' ') + parts[depth] + ":\n";
    open = parts;
    text += std::string(2 * parts.size(), ' ') + name + ": " + value_of(line) + "\n";
  }
  return text;
}

std::string main_help(const std::string& name, const std::string& command, const MainProgram& program,
                      const std::vector<options::Description>& trainer_arguments) {
  const bool has_command = !command.empty();
  auto text = "Usage: " + name + " " + (has_command ? command : "COMMAND") + " [OPTIONS]\n";
  text +=
      "The words in [] are defaults, those in {} environment variables. A flag counts more than a variable, and a "
      "variable more than a file.\n";
  if (!has_command) text += section("Commands", commands_help(program));
  text += section("Options", general_options());
  text += section("Options of the module", fields_help("model", program.model));
  text += section("Options of the data", fields_help("data", program.data));
  if (has_command) text += section("Arguments of the Trainer", arguments_help(trainer_arguments));
  else text += "\nArguments of the Trainer, such as --trainer.max_epochs 3: " + name + " COMMAND --help\n";
  return text;
}

}  // namespace muster::trainer
