#include "muster/trainer/detail/main_call.h"

#include <torch/utils.h>

#include "base/options_text.h"
#include "base/text.h"
#include "base/yaml.h"
#include "cluster/report.h"
#include "main_program.h"
#include "muster/base/error.h"
#include "muster/cluster/cluster.h"
#include "muster/trainer/trainer.h"
#include "options/lightning_config.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

constexpr int kUsage = 2;  // exit code for a usage error
/// What each run needs, indexed by Stage.
constexpr const char* kNeeds[] = {"training_step in the module and train_dataloader in the data",
                                  "validation_step in the module and val_dataloader in the data",
                                  "test_step in the module and test_dataloader in the data",
                                  "predict_step or forward in the module and predict_dataloader in the data"};
constexpr std::string_view kNoFolders[] = {"", "best", "hpc", "last", "none"};

std::vector<std::string> commands_of(const MainProgram& program) {
  std::vector<std::string> names;
  for (std::size_t stage = 0; stage < program.runs.size(); ++stage)
    if (program.runs[stage]) names.emplace_back(kSubcommands[stage]);
  return names;
}

std::string name_of_program(const std::vector<std::string>& words) {
  return words.empty() ? "program" : fs::path(words.front()).filename().string();
}

std::vector<std::string> behind_name(const std::vector<std::string>& words) {
  return words.empty() ? words : std::vector(words.begin() + 1, words.end());
}

class CallReader {
 public:
  CallReader(const std::vector<std::string>& words, const MainProgram& program, const Environment& variables)
      : line_(split_line(behind_name(words))), name_(name_of_program(words)), program_(program), variables_(variables) {
  }

  MainCall read() {
    if (line_.help) return help();
    add(line_.problems);
    if (!take_command()) return refused("MU500");
    if (!program_.runs[static_cast<std::size_t>(call_.stage)]) return refuse_command();
    const auto sources = read_main_sources(line_, program_, variables_);
    add(sources.problems);
    take_seed(sources);
    take_checkpoint(sources);
    add(apply_fields("model", program_.model, sources.own));
    add(apply_fields("data", program_.data, sources.own));
    auto request = trainer_request(program_.trainer, sources, variables_);
    add(request.problems);
    if (!problems_.empty()) return refused("MU500");
    if (line_.print_config) return config(request.config);
    for (const auto& note : request.notes) call_.error += "muster: " + note + "\n";
    call_.options_line = std::move(request.line);
    call_.trainer = std::move(request.options);
    return std::move(call_);
  }

 private:
  void add(const std::vector<std::string>& problems) {
    problems_.insert(problems_.end(), problems.begin(), problems.end());
  }

  MainCall help() {
    const auto command = is_subcommand(line_.command) ? line_.command : "";
    call_.output = main_help(name_, command, program_, trainer_arguments(program_.trainer));
    call_.exit_code = 0;
    return std::move(call_);
  }

  bool take_command() {
    const auto* const found = std::ranges::find(kSubcommands, line_.command);
    if (found != std::end(kSubcommands)) {
      call_.stage = static_cast<Stage>(found - std::begin(kSubcommands));
      return true;
    }
    problems_.push_back((line_.command.empty() ? "a command is missing behind the program's name"
                                               : "there is no command '" + line_.command + "'") +
                        known_names(line_.command, commands_of(program_)));
    return false;
  }

  MainCall refuse_command() {
    problems_ = {line_.command + " takes " + kNeeds[static_cast<std::size_t>(call_.stage)] +
                 ", and this program lacks one of them" + known_ones(commands_of(program_))};
    return refused("MU501");
  }

  void take_seed(const MainSources& sources) {
    call_.seed = 0;
    const auto given = sources.own.find("seed_everything");
    if (given == sources.own.end()) return;
    const auto& [text, place, is_list] = given->second.found;
    bool asks = given->second.form != options::ValueForm::none;  // false for "null" in a file
    uint64_t number = 0;
    if (asks && options::Value<uint64_t>::read(text, number).empty()) call_.seed = number;
    else if (asks && !options::Value<bool>::read(text, asks).empty())
      problems_.push_back(place + ": option 'seed_everything' is '" + text +
                          "', but a whole number from 0, true or false is wanted");
    else if (!asks) call_.seed.reset();
    seed_text_ = text.empty() ? "false" : text;
  }

  /// The module's options in the checkpoint become the defaults of the program's options.
  void take_checkpoint(const MainSources& sources) {
    if (const auto given = sources.own.find("ckpt_path"); given != sources.own.end()) {
      const auto& [text, place, is_list] = given->second.found;
      if (is_list || given->second.form == options::ValueForm::nested)
        problems_.push_back(place + ": option 'ckpt_path' is one path");
      else if (text != "null") call_.ckpt_path = text;
    }
    const bool is_word = std::ranges::find(kNoFolders, call_.ckpt_path) != std::end(kNoFolders);
    std::error_code unreadable;
    if (is_word || !program_.load_model_options || !fs::exists(call_.ckpt_path, unreadable)) return;
    try {
      program_.load_model_options(call_.ckpt_path);
    } catch (const Error& error) {
      problems_.emplace_back(error.what());
    }
  }

  MainCall refused(const char* id) {
    const bool is_one = problems_.size() == 1;
    auto text = "nothing has run, since the call of " + name_ + " is wrong:";
    for (const auto& problem : problems_) text += (is_one ? " " : "\n  - ") + problem;
    const auto help = name_ + (is_subcommand(line_.command) ? " " + line_.command : "") + " --help";
    call_.error = std::string(id) + ": " + text + "\n(all options: " + help + "; more: muster explain " + id + ")";
    call_.exit_code = kUsage;
    return std::move(call_);
  }

  MainCall config(const std::vector<ConfigLine>& of_trainer) {
    std::vector<ConfigLine> lines{{.key = "seed_everything", .text = seed_text_}};
    lines.insert(lines.end(), of_trainer.begin(), of_trainer.end());
    const auto add_fields = [&](const std::string& section, const std::vector<OptionField>& fields) {
      for (const auto& field : fields)
        lines.push_back({section + "." + field.description.name, field.write(), field.description.takes_list,
                         field.description.may_be_none()});
    };
    add_fields("model", program_.model);
    add_fields("data", program_.data);
    lines.push_back({.key = "ckpt_path",
                     .text = call_.ckpt_path.empty() ? "none" : call_.ckpt_path,
                     .may_be_none = call_.ckpt_path.empty()});
    call_.output = config_text(lines);
    call_.exit_code = 0;
    return std::move(call_);
  }

  MainCall call_;
  MainLine line_;
  std::string name_;
  std::vector<std::string> problems_;
  const MainProgram& program_;
  std::string seed_text_ = "true";
  const Environment& variables_;
};

/// Every rank under a launcher parses the same command line, so only one prints output that is not an error.
bool is_main_rank() {
  try {
    return read_cluster_environment().is_main();
  } catch (const Error&) {
    return true;
  }
}

void print_error(const std::string& message) {
  int page = -1;
  try {
    page = read_cluster_environment().report_fd;
  } catch (const Error&) {}
  // The launcher prints the error once for all ranks.
  if (cluster::write_error_message(cluster::Report::open(page), message)) return;
  std::fprintf(stderr, "muster: %s\n", message.c_str());
}

}  // namespace

MainCall read_main_call(const std::vector<std::string>& words, const MainProgram& program,
                        const Environment& variables) {
  return CallReader(words, program, variables).read();
}

bool begin_main(const MainCall& call) {
  if (call.exit_code) {
    if (*call.exit_code != 0) print_error(call.error);
    else if (is_main_rank()) std::fputs(call.output.c_str(), stdout);
    return false;
  }
  if (!call.error.empty() && is_main_rank()) std::fputs(call.error.c_str(), stderr);
  if (!call.options_line.empty())
    setenv(options::kLineVariable, call.options_line.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  return true;
}

void print_metrics(const Trainer& trainer, const std::vector<Metrics>& of_loaders) {
  for (const auto& metrics : of_loaders)
    for (const auto& [name, value] : metrics) trainer.print("{}: {:.6g}", name, value);
}

void seed_generators(const std::optional<uint64_t>& seed) {
  if (seed) torch::manual_seed(*seed);
}

// --- the texts that a call prints

namespace {

std::string value_of(const ConfigLine& line) {
  if (line.may_be_none && line.text == "none") return "null";
  if (!line.is_list) return options::yaml_text(line.text);
  std::vector<std::string> items;
  read_items(line.text, items);
  // Only the text form keeps an item that contains a comma in one piece.
  if (std::any_of(items.begin(), items.end(), [](const auto& item) { return item.find(',') != std::string::npos; }))
    return options::yaml_text(line.text);
  return "[" + joined(items, options::yaml_text) + "]";
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
    if (program.runs[stage]) rows += row(std::string(kSubcommands[stage]), kCommandHelp[stage]);
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

std::string options_help(const std::vector<options::Description>& described) {
  std::string rows;
  for (const auto& option : described)
    rows += row("--" + option.name, option.help + (option.unit.empty() ? "" : " (" + option.unit + ")") + " [" +
                                        option.default_text + "]" +
                                        (option.variable.empty() ? "" : " {" + option.variable + "}"));
  return rows;
}

}  // namespace

std::string config_text(const std::vector<ConfigLine>& lines) {
  std::string text;
  std::vector<std::string> open;
  for (const auto& line : lines) {
    auto parts = split_text(line.key, '.');
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
  text += section("Options of the module", options_help(own_options("model", program.model)));
  text += section("Options of the data", options_help(own_options("data", program.data)));
  if (has_command) text += section("Arguments of the Trainer", options_help(trainer_arguments));
  else text += "\nArguments of the Trainer, such as --trainer.max_epochs 3: " + name + " COMMAND --help\n";
  return text;
}

}  // namespace muster::trainer
