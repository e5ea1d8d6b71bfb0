#include "base/options_text.h"
#include "base/text.h"
#include "main_program.h"
#include "muster/base/error.h"
#include "options/lightning_config.h"
#include "options/program_options.h"
#include "options/words.h"

namespace muster::trainer {
namespace {

bool is_flag(const std::string& word) { return word.starts_with("--") || word == "-c" || word == "-h"; }

std::string name_of(const std::string& spelled) {
  if (spelled == "-c") return "config";
  if (spelled == "-h") return "help";
  auto name = spelled.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class LineReader {
 public:
  explicit LineReader(const std::vector<std::string>& words) : words_(words) {}

  MainLine read() {
    while (at_ < words_.size()) take(words_[at_++]);
    return std::move(line_);
  }

 private:
  void take(const std::string& word) {
    if (!is_flag(word)) return take_plain(word);
    const auto sign = word.find('=');
    const auto spelled = word.substr(0, sign);
    LineFlag flag{name_of(spelled), "flag " + spelled, {}};
    const bool stands_alone = flag.name == "help" || flag.name == "print_config";
    if (sign != std::string::npos) flag.text = word.substr(sign + 1);
    else if (!stands_alone && at_ < words_.size() && !is_flag(words_[at_])) flag.text = words_[at_++];
    if (stands_alone && flag.text) return refuse(flag.place + " takes no value, and has '" + *flag.text + "'");
    if (flag.name == "help") line_.help = true;
    else if (flag.name == "print_config") line_.print_config = true;
    else if (flag.name == "config") take_config(flag);
    else line_.flags.push_back(std::move(flag));
  }

  void take_config(const LineFlag& flag) {
    if (flag.text && !flag.text->empty()) line_.config.push_back(*flag.text);
    else refuse(flag.place + " lacks the name of a file behind it");
  }

  void take_plain(const std::string& word) {
    if (word.starts_with('-')) refuse("there is no flag '" + word + "'; flags begin with two dashes");
    else if (line_.command.empty()) line_.command = word;
    else refuse("'" + word + "' stands where a flag such as --config is expected, behind " + line_.command);
  }

  void refuse(std::string problem) { line_.problems.push_back(std::move(problem)); }

  MainLine line_;
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

using options::Description;
using options::FileValue;
using options::RawOptions;
using options::ValueForm;

constexpr std::string_view kTopKeys[] = {"ckpt_path", "seed_everything"};

/// Arguments that a file may give in several parts.
constexpr std::string_view kWholes[] = {"trainer.max_time.", "trainer.strategy.", "trainer.val_check_interval."};

template <class Names>
bool is_among(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const OptionField* field_of(const std::vector<OptionField>& fields, const std::string& name) {
  const auto found = std::ranges::find_if(fields, [&](const auto& field) { return field.description.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

/// The options that text can set.
const std::vector<Description>& settable_options() {
  static const auto all = [] {
    auto options = runtime::program_options();
    std::erase_if(options, [](const auto& option) { return option.code_only; });
    return options;
  }();
  return all;
}

class SourceReader {
 public:
  SourceReader(const MainLine& line, const MainProgram& program)
      : line_(line), model_(own_options("model", program.model)), data_(own_options("data", program.data)) {}

  MainSources read(const Environment& variables) {
    for (const auto& path : line_.config) take_file(path);
    take_variables(variables, "model", model_);
    take_variables(variables, "data", data_);
    for (const auto& flag : line_.flags) take_flag(flag);
    return std::move(sources_);
  }

 private:
  void refuse(std::string problem) { sources_.problems.push_back(std::move(problem)); }

  void take_file(const std::string& path) {
    std::vector<FileValue> of_trainer;
    try {
      for (auto& value : options::read_file_values(path)) take_key(std::move(value), of_trainer);
    } catch (const Error& error) {
      refuse(error.what());
    }
    translate(of_trainer, sources_.trainer_file);
  }

  void take_key(FileValue value, std::vector<FileValue>& of_trainer) {
    auto dot = value.key.find('.');
    if (is_subcommand(value.key.substr(0, dot))) {
      if (dot == std::string::npos || value.key.substr(0, dot) != line_.command) return;
      value.key.erase(0, dot + 1);
      dot = value.key.find('.');
    }
    const auto section = value.key.substr(0, dot);
    const bool is_section = section == "trainer" || section == "model" || section == "data";
    if (section == "run") return;  // for `muster run`
    if (is_section && dot == std::string::npos) return require_empty(value);
    if (section == "trainer") of_trainer.push_back(std::move(value));
    else if (is_section || is_among(kTopKeys, value.key)) sources_.own[value.key] = std::move(value);
    else refuse_key(section, value);
  }

  void require_empty(const FileValue& section) {
    if (section.form != ValueForm::none)
      refuse(section.found.place + ": '" + section.key + "' is a section: indent its keys below it");
  }

  void refuse_key(const std::string& key, const FileValue& value) {
    if (const auto* word = options::find_foreign_word(options::Place::cli, key)) {
      if (!options::asks_for_nothing(*word, value.form == ValueForm::none ? "null" : value.found.text))
        refuse(value.found.place + ": '" + key + "' " + std::string(word->text));
      return;
    }
    refuse(value.found.place + ": no key '" + key + "' is known" +
           known_names(key, {"ckpt_path", "data", "model", "seed_everything", "trainer"}));
  }

  /// Translates values one by one, so that every error is reported; parts of one strategy or time are translated
  /// together.
  void translate(const std::vector<FileValue>& values, RawOptions& into) {
    std::map<std::string_view, std::vector<FileValue>> parts;
    for (const auto& value : values) {
      const auto* whole = std::ranges::find_if(kWholes, [&](auto begin) { return value.key.starts_with(begin); });
      if (whole == std::end(kWholes)) translate_some({value}, into);
      else parts[*whole].push_back(value);
    }
    for (const auto& [whole, of_it] : parts) translate_some(of_it, into);
  }

  void translate_some(const std::vector<FileValue>& values, RawOptions& into) {
    try {
      auto request = translate_lightning(values, settable_options(), LightningDefaults::count);
      for (auto& [name, found] : request.options) into[name] = std::move(found);
      for (const auto& name : request.without_effect)
        refuse(values.front().found.place + ": only code can give '" + name +
               "': give it to trainer_main() in the program, and take it out here");
    } catch (const Error& error) {
      refuse(error.what());
    }
  }

  void take_variables(const Environment& variables, const std::string& section,
                      const std::vector<Description>& described) {
    std::vector<std::string> known;
    for (const auto& option : described) {
      known.push_back(option.variable);
      if (const auto text = variables.find(option.variable))
        sources_.own[option.name] = {option.name, {*text, "variable " + option.variable}, ValueForm::plain};
    }
    for (const auto& [name, text] : variables.variables())
      if (name.starts_with(options::variable_of(section) + "_") && !text.empty() && !is_among(known, name))
        refuse("variable " + name + " is none of this program's" + known_names(name, known));
  }

  void take_flag(const LineFlag& flag) {
    const auto dot = flag.name.find('.');
    const auto section = flag.name.substr(0, dot), rest = dot == std::string::npos ? "" : flag.name.substr(dot + 1);
    if (section == "trainer" && !rest.empty()) return take_trainer_flag(rest, flag);
    const bool is_own = (section == "model" || section == "data") && !rest.empty();
    if (!is_own && !is_among(kTopKeys, flag.name)) return refuse_flag(flag);
    const auto* option = options::find_option(section == "model" ? model_ : data_, flag.name);
    if (const auto text = text_of(flag, option && option->is_switch))
      sources_.own[flag.name] = {flag.name, {*text, flag.place}, ValueForm::plain};
  }

  void take_trainer_flag(const std::string& name, const LineFlag& flag) {
    const auto* option = trainer_argument(runtime::program_options(), name);
    const auto text = text_of(flag, !option || option->is_switch);
    if (!text) return;
    const auto form = *text == "null" ? ValueForm::none : ValueForm::plain;
    translate({{flag.name, {*text, flag.place}, form}}, sources_.trainer_flags);
  }

  std::optional<std::string> text_of(const LineFlag& flag, bool is_switch) {
    if (flag.text) return flag.text;
    if (is_switch) return "true";
    refuse(flag.place + " lacks its value");
    return {};
  }

  void refuse_flag(const LineFlag& flag) {
    std::vector<std::string> known{"ckpt_path", "config", "help", "print_config", "seed_everything"};
    for (const auto* described : {&model_, &data_})
      for (const auto& option : *described) known.push_back(option.name);
    for (const auto& option : settable_options())
      if (option.name.starts_with("trainer.")) known.push_back(option.name);
    auto nearest = nearest_name(flag.name, known);
    for (const auto* section : {"data.", "model.", "trainer."})
      if (is_among(known, section + flag.name)) nearest = section + flag.name;
    refuse("there is no " + flag.place + (nearest.empty() ? "" : "; nearest is --" + nearest));
  }

  const MainLine& line_;
  const std::vector<Description> model_, data_;
  MainSources sources_;
};

std::string unknown_option(const std::string& section, const std::string& name, const FileValue& value,
                           const std::vector<OptionField>& fields) {
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.description.name);
  const auto first = name.substr(0, name.find('.'));
  const bool is_class = first == "class_path" || first == "init_args";
  const std::string owner = section == "model" ? "the module" : "the data module";
  return value.found.place + ": " + owner + " has no option '" + name + "'" + known_names(name, names) +
         (is_class ? "; the program says which class it is: write the keys of init_args directly below " + section
                   : "");
}

/// Reads the value into the field. Returns the expected form if it does not fit, otherwise "".
std::string read_value(const OptionField& field, const FileValue& value) {
  const auto& option = field.description;
  switch (value.form) {
    case ValueForm::none:
      if (option.takes_list || option.may_be_none()) return field.read(option.takes_list ? "" : "none");
      return "a value, " + option.type + ",";
    case ValueForm::nested: return "one value, " + option.type + ",";
    case ValueForm::list:
      if (!option.takes_list) return "one value, " + option.type + ", and no list";
      break;
    case ValueForm::plain: break;
  }
  return field.read(value.found.text);
}

}  // namespace

std::string read_items(const std::string& text, std::vector<std::string>& items) {
  const bool in_brackets = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  return options::Value<std::vector<std::string>>::read(in_brackets ? text.substr(1, text.size() - 2) : text, items);
}

std::vector<Description> own_options(const std::string& section, const std::vector<OptionField>& fields) {
  std::vector<Description> described;
  for (const auto& field : fields) {
    auto& option = described.emplace_back(field.description);
    option.name = section + "." + option.name;
    option.help = option.type;
    option.default_text = field.write();
    option.variable = options::variable_of(option.name);
  }
  return described;
}

MainLine split_line(const std::vector<std::string>& words) { return LineReader(words).read(); }

MainSources read_main_sources(const MainLine& line, const MainProgram& program, const Environment& variables) {
  return SourceReader(line, program).read(variables);
}

std::vector<std::string> apply_fields(const std::string& section, const std::vector<OptionField>& fields,
                                      const std::map<std::string, FileValue>& own) {
  std::vector<std::string> problems;
  for (const auto& [key, value] : own) {
    if (!key.starts_with(section + ".")) continue;
    const auto name = key.substr(section.size() + 1);
    const auto* field = field_of(fields, name);
    if (!field) {
      problems.push_back(unknown_option(section, name, value, fields));
      continue;
    }
    const auto wanted = read_value(*field, value);
    if (!wanted.empty())
      problems.push_back(value.found.place + ": option '" + key + "' is '" + value.found.text + "', but " + wanted +
                         " is wanted");
  }
  return problems;
}

}  // namespace muster::trainer
