#include "options/program_options.h"

#include "base/options_text.h"
#include "base/text.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "options/launcher_fields.h"
#include "options/runtime_fields.h"
#include "options/strategy_fields.h"
#include "options/strategy_request.h"
#include "options/trainer_fields.h"
#include "options/words.h"

/// Conversions to and from text for types that only RuntimeOptions has.
namespace muster::options {

/// For a type that parses its names itself, and throws for an unknown one.
template <class T>
struct NamedValue {
  static std::string read(const std::string& text, T& value) {
    value = T::parse(text);
    return "";
  }
  static std::string write(const T& value) { return std::string(value.name()); }
};

template <>
struct Value<Precision> : NamedValue<Precision> {
  static constexpr const char* kType = "precision";
};

template <>
struct Value<KeepMemory> : NamedValue<KeepMemory> {
  static constexpr const char* kType = "one of auto, on, off";
  static std::string read(const std::string& text, KeepMemory& value) {
    const auto on = read_bool(text);
    return NamedValue::read(!on ? text : *on ? "on" : "off", value);
  }
};

/// A custom precision can only be given in code.
template <>
struct Value<DeviceBackend> {
  static constexpr const char* kType = "auto, none, or a name or path";
  static std::string read(const std::string& text, DeviceBackend& value) {
    if (text.empty()) return kType;
    value = DeviceBackend(text);
    return "";
  }
  static std::string write(const DeviceBackend& value) { return value.name(); }
};

/// The options of the strategy are separate, under "ddp." and "fsdp.".
template <>
struct Value<Strategy> : NamedValue<Strategy> {
  static constexpr const char* kType = "strategy";
};

/// An unset value means "auto".
template <>
struct Value<std::optional<Devices>> {
  static constexpr const char* kType = "count, list or auto";
  static std::string read(const std::string& text, std::optional<Devices>& value) {
    value = Devices(text);
    return "";
  }
  static std::string write(const std::optional<Devices>& value) { return value ? value->text() : "auto"; }
};

template <>
struct Value<std::optional<bool>> {
  static constexpr const char* kType = "true, false or auto";
  static std::string read(const std::string& text, std::optional<bool>& value) {
    if (text == "auto") value.reset();
    else if (const auto given = read_bool(text)) value = given;
    else return kType;
    return "";
  }
  static std::string write(const std::optional<bool>& value) { return value ? Value<bool>::write(*value) : "auto"; }
};

template <>
struct Value<Deterministic> {
  static constexpr const char* kType = "true, false or warn";
  static constexpr bool kIsSwitch = true;
  static std::string read(const std::string& text, Deterministic& value) {
    if (text == "warn") value = Deterministic::warn();
    else if (const auto on = read_bool(text)) value = *on;
    else return kType;
    return "";
  }
  static std::string write(const Deterministic& value) {
    return value.warns() ? "warn" : Value<bool>::write(static_cast<bool>(value));
  }
};

template <>
struct Value<MatmulPrecision> : WordValue<runtime::MatmulPrecisionWords> {};

template <>
struct Value<GradientWeighting> {
  static constexpr const char* kType = "one of fixed, mean, sum";
  static constexpr std::string_view kWords[] = {"fixed", "mean", "sum"};
  static std::string read(const std::string& text, GradientWeighting& value) {
    const auto* found = std::ranges::find(kWords, text);
    if (found == std::end(kWords)) return kType;
    value = static_cast<GradientWeighting>(found - kWords);
    return "";
  }
  static std::string write(const GradientWeighting& value) { return std::string(kWords[static_cast<size_t>(value)]); }
};

}  // namespace muster::options

namespace muster::runtime {
namespace {

using options::Description;
using options::Found;
using options::RawOptions;

/// The launcher has its own options for these, so the program's have no MUSTER_ variable.
bool is_the_launchers(const std::string& name) { return name == "devices" || name == "num_nodes"; }

bool is_of_strategy(const std::string& name) { return name.starts_with("ddp.") || name.starts_with("fsdp."); }

void add(std::vector<Description>& all, const std::string& prefix, std::vector<Description> descriptions) {
  for (auto& description : descriptions) {
    description.name = prefix + description.name;
    for (auto& alias : description.aliases) alias = prefix + alias;
    all.push_back(std::move(description));
  }
}

/// Moves fields of other libraries into the text of `fsdp`, where resolve_strategy() reads them.
void fold_into_fsdp(RawOptions& texts) {
  const auto& known = program_options();
  for (auto it = texts.begin(); it != texts.end();) {
    const auto& [name, found] = *it;
    if (!name.starts_with("fsdp.") || std::ranges::find(known, name, &Description::name) != known.end()) {
      ++it;
      continue;
    }
    auto& text = texts["fsdp"];
    text = {text.text + (text.text.empty() ? "" : ",") + name.substr(5) + "=" + found.text, found.place};
    it = texts.erase(it);
  }
}

/// `others`, followed by those options of a program that are not among them.
std::vector<Description> with_others(const std::vector<Description>& others) {
  auto all = others;
  for (const auto& option : program_options())
    if (!options::find_option(others, option.name)) all.push_back(option);
  return all;
}

/// All options without the variables of other tools, over which the file takes precedence.
std::vector<Description> own_options(const std::vector<Description>& others) {
  auto known = with_others(others);
  for (auto& option : known) option.other_tools.clear();
  return known;
}

/// The launchers of other tools always set some variables, so a value that equals the default asks for nothing.
bool is_default(const std::string& name, const std::string& text) {
  for (const auto& option : runtime_option_table().options)
    if (option.description.name == name) {
      RuntimeOptions values;
      return option.read(values, text).empty() && option.write(values) == option.description.default_text;
    }
  return false;
}

RawOptions of_other_tools(const Environment& variables, const std::vector<Description>& others) {
  RawOptions texts;
  for (const auto& option : with_others(others))
    for (const auto& variable : option.other_tools)
      if (const auto text = variables.find(variable); text && !is_default(option.name, *text))
        texts.emplace(option.name, Found{*text, "variable " + variable});
  texts.merge(given_by_other_tools(variables));
  return texts;
}

/// Throws: ConfigError (MU306) for a launcher's name that is not an option of a program. `known` are the options that
/// may be given.
void refuse_names_of_launchers(const RawOptions& texts, const std::vector<Description>& known) {
  const auto ours = run_option_table().descriptions();
  for (const auto& [key, found] : texts) {
    if (options::find_option(known, key)) continue;
    if (options::find_option(ours, key) && key != "options")
      throw ConfigError("MU306", found.place + ": option '" + key +
                                     "' is one of `muster run`, which has not started this program; start it by "
                                     "`muster run`, or take the option out there");
    if (const auto here = options::spelling_here(key); !here.empty())
      throw ConfigError("MU306", found.place + ": '" + key +
                                     "' is a name of another launcher; for `muster run` it is " + here +
                                     "; replace it there");
  }
}

/// A line inside a line would not be read, so `options` is left out.
std::vector<Description> without_line(std::vector<Description> known) {
  std::erase_if(known, [](const auto& option) { return option.name == "options"; });
  return known;
}

constexpr int64_t kMostSeconds = 1'000'000'000;  // longest duration of an option

Found with_unit(Found found) {
  std::chrono::milliseconds time{-1};
  const auto wanted = options::Value<std::chrono::milliseconds>::read(found.text, time);
  if (!wanted.empty() || time > std::chrono::seconds(kMostSeconds))
    throw ConfigError(
        "MU021", found.place + " is '" + found.text + "', but a duration such as 30 (seconds), 5min or 2h is wanted");
  found.text = options::Value<std::chrono::milliseconds>::write(time);
  return found;
}

/// The options that a program's environment variables request.
RawOptions given_to_program(const Environment& environment) {
  auto given_options = find_given_options(
      {.line = options::read_line(environment.find(options::kLineVariable).value_or("")), .variables = environment});
  // Muster's launcher has started the ranks, so Lightning's number of devices and nodes no longer applies.
  if (environment.has(cluster::kJob))
    for (const auto* name : {"devices", "num_nodes"})
      if (const auto found = given_options.find(name);
          found != given_options.end() && found->second.place.starts_with("variable LT_"))
        given_options.erase(found);
  return given_options;
}

GradientAccumulationOptions accumulation_of(const AcceleratorOptions& options) {
  auto chosen = options.gradient_accumulation;
  if (options.gradient_accumulation_steps == 1) return chosen;
  if (chosen.num_steps != 1 && chosen.num_steps != options.gradient_accumulation_steps)
    throw ConfigError("MU181", "gradient_accumulation_steps is " + std::to_string(options.gradient_accumulation_steps) +
                                   " and gradient_accumulation.num_steps " + std::to_string(chosen.num_steps) +
                                   "; give one of them");
  chosen.num_steps = options.gradient_accumulation_steps;
  return chosen;
}

}  // namespace

const options::Table<RuntimeOptions>& runtime_option_table() {
  static const options::Table<RuntimeOptions> table = [] {
    options::Table<RuntimeOptions> made;
    visit_options([&](const char* name, auto get, Description description) {
      description.name = name;
      description.other_tools = options::foreign_variables(description);
      if (!is_the_launchers(name) && description.variable.empty()) description.variable = options::variable_of(name);
      made.options.push_back(options::option_at<RuntimeOptions>(name, get, std::move(description)));
    });
    std::ranges::sort(made.options, {}, [](const auto& option) { return option.description.name; });
    return made;
  }();
  return table;
}

const std::vector<Description>& program_options() {
  static const std::vector<Description> all = [] {
    auto made = runtime_option_table().descriptions();
    add(made, "ddp.", strategy::replicated_table().descriptions());
    add(made, "fsdp.", strategy::sharded_table().descriptions());
    for (const auto& [name, help] :
         {std::pair{"ddp", "options of replicated training in one text, such as bucket_cap_mb=10"},
          std::pair{"fsdp", "options of sharded training in one text, such as unit_classes=Block,stage=gradients"}})
      made.push_back({.name = name,
                      .help = help,
                      .variable = options::variable_of(name),
                      .tested_by = "Requests.OneTextSetsSeveralOptions",
                      .type = "name=value,..."});
    add(made, "", trainer::option_table().descriptions());
    return made;
  }();
  return all;
}

RawOptions find_given_options(const options::Sources& sources, const std::string& section,
                              const std::vector<Description>& others) {
  const auto known = own_options(others), in_line = without_line(known);
  auto given = sources;
  for (auto* line : {&given.flag_line, &given.line}) {
    fold_into_fsdp(*line);
    refuse_names_of_launchers(*line, in_line);
  }
  given.file = sources.file.changed(section, fold_into_fsdp);
  refuse_names_of_launchers(given.file.section(section), known);
  // Sources are read one after the other, so that a text of several options has the precedence of its source.
  RawOptions all;
  const auto take = [&](const std::vector<Description>& options, const options::Sources& one) {
    auto found = options::find(options, section, one);
    for (const auto* name : {"ddp", "fsdp"}) options::expand(found, name, options, "MU196");
    all.merge(found);
  };
  take(known, {.flags = given.flags});
  take(in_line, {.flag_line = given.flag_line});
  take(in_line, {.line = given.line});
  take(known, {.variables = given.variables});
  take(known, {.file = given.file});
  all.merge(of_other_tools(sources.variables, others));
  return all;
}

RuntimeOptions with_given_options(RuntimeOptions values, const RawOptions& given_options,
                                  const Environment& variables) {
  strategy::StrategyRequest request;
  for (const auto& [name, found] : given_options)
    if (is_of_strategy(name)) request.fields[name] = found;
  for (const auto& option : runtime_option_table().options) {
    const auto& name = option.description.name;
    const auto found = given_options.find(name);
    if (found == given_options.end()) continue;
    if (name == "timeout") {
      const auto timeout = with_unit(found->second);
      if (timeout.text != "0s") options::follow(option, timeout, values);
    } else if (name == "strategy") {
      request.name = found->second.text;
      request.place = found->second.place;
    } else {
      options::follow(option, found->second, values);
    }
  }
  values.strategy = strategy::resolve_strategy(values.strategy, request, variables);
  return values;
}

RuntimeOptions resolved(RuntimeOptions options, const Environment& environment) {
  return with_given_options(std::move(options), given_to_program(environment), environment);
}

std::vector<std::string> given_option_notes(const Environment& environment) {
  std::vector<std::string> notes;
  for (const auto& [name, found] : given_to_program(environment))
    notes.push_back("option " + name + ": " + found.text + " (" + found.place + ")");
  return notes;
}

void check_given_options(const RawOptions& given_options) {
  const auto strategy = given_options.find("strategy");
  strategy::check_launch_options(strategy == given_options.end() ? "" : strategy->second.text, given_options);
  trainer::check_launch_options(given_options);
  auto others = given_options;
  std::erase_if(others, [](const auto& one) { return is_of_strategy(one.first); });
  with_given_options({}, others, {});
}

std::map<std::string, std::string> written_options(const RuntimeOptions& options) {
  auto texts = strategy::written_fields(options.strategy);
  for (const auto& option : runtime_option_table().options)
    if (!option.description.code_only) texts[option.description.name] = option.write(options);
  return texts;
}

RuntimeOptions accelerate(const AcceleratorOptions& options) {
  auto result = copied_options<RuntimeOptions>(options);
  if (options.devices == Devices()) result.devices.reset();  // the number that the launcher has started
  if (options.cpu) result.accelerator = "cpu";
  result.gradient_accumulation = accumulation_of(options);
  result.precision = options.mixed_precision;
  return result;
}

RuntimeOptions fabric(const FabricOptions& options) { return copied_options<RuntimeOptions>(options); }

}  // namespace muster::runtime
