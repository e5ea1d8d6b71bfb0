#include "options/lightning_config.h"

#include <cmath>

#include "base/options_text.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "options/strategy_request.h"
#include "options/words.h"

namespace muster::trainer {
namespace {

using options::FileValue;
using options::Found;
using options::RawOptions;

/// Units of Python's timedelta, in milliseconds.
constexpr std::pair<std::string_view, double> kUnits[] = {{"weeks", 6048e5}, {"days", 864e5},  {"hours", 36e5},
                                                          {"minutes", 6e4},  {"seconds", 1e3}, {"milliseconds", 1}};

/// Adds one part of a time, in `unit`, to the time in `sum`: {hours: 3, minutes: 30}.
void add_part(std::string unit, const Found& part, Found& sum) {
  if (unit.starts_with("init_args.")) unit.erase(0, 10);
  if (unit == "class_path" && part.text.ends_with("timedelta")) return;
  const auto* known = std::ranges::find(kUnits, unit, &std::pair<std::string_view, double>::first);
  if (known == std::end(kUnits)) {
    std::vector<std::string> names;
    for (const auto& [name, factor] : kUnits) names.emplace_back(name);
    throw ConfigError("MU480", part.place + ": a time has no part '" + unit + "'" + known_names(unit, names) +
                                   "; correct it, or write DD:HH:MM:SS");
  }
  double count = 0;
  if (const auto wanted = options::Value<double>::read(part.text, count); !wanted.empty())
    options::refuse({.name = unit}, part, wanted);
  using Time = std::chrono::milliseconds;
  Time time{0};
  if (sum.place.empty()) sum.place = part.place;
  else options::Value<Time>::read(sum.text, time);
  sum.text = options::Value<Time>::write(time + Time(std::llround(count * known->second)));
}

class LightningTranslator {
 public:
  LightningTranslator(const std::vector<options::Description>& known, LightningDefaults defaults)
      : defaults_(defaults), known_(known) {}

  LightningRequest translate(const std::vector<FileValue>& values) {
    for (const auto& value : values) take(value);
    take_strategy();
    for (auto& [name, time] : times_) result_.options[name] = std::move(time);
    return std::move(result_);
  }

 private:
  void take(const FileValue& value) {
    auto key = value.key;
    const auto first = key.substr(0, key.find('.'));
    if (is_subcommand(first) && key.size() > first.size()) key = key.substr(first.size() + 1);
    if (key.starts_with("trainer.")) return take_argument(key.substr(8), value);
    name_once(result_.of_program, key.substr(0, key.find('.')));
  }

  static void name_once(std::vector<std::string>& names, const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }

  void take_argument(const std::string& name, const FileValue& value) {
    const auto first = name.substr(0, name.find('.'));
    if (first == "strategy" && first != name) {
      if (value.form != options::ValueForm::none) of_strategy_[name.substr(9)] = value.found;
      return;
    }
    const auto* whole = trainer_argument(known_, name);  // "grad_scaler.init_scale" is a single name
    const auto* option = whole ? whole : trainer_argument(known_, first);
    const auto* in_code = options::find_foreign_word(options::Place::trainer, first);
    if (!option && !in_code) refuse_argument(first, value);
    if (value.form == options::ValueForm::none) return set_none(option, value);
    if (option && !whole && option->type.find("DD:HH:MM:SS") != std::string::npos)
      return add_part(name.substr(first.size() + 1), value.found, times_[option->name]);
    const bool is_plain = (first == name || whole) && value.form != options::ValueForm::nested;
    if (option && !option->code_only && is_plain) return set(*option, value.found);
    const bool idle = in_code && options::asks_for_nothing(*in_code, value.found.text);
    if (!idle) name_once(result_.without_effect, "trainer." + first);
  }

  [[noreturn]] void refuse_argument(const std::string& name, const FileValue& value) const {
    std::vector<std::string> names{
        "accelerator", "accumulate_grad_batches", "benchmark", "deterministic", "devices", "num_nodes", "precision",
        "strategy"};
    for (const auto& option : known_)
      if (option.name.starts_with("trainer.")) names.push_back(option.name.substr(8));
    for (const auto& one : options::foreign_words(options::Place::trainer)) names.emplace_back(one.word);
    throw ConfigError("MU480", value.found.place + ": the Trainer has no argument '" + name + "'" +
                                   known_names(name, names) + "; correct it, or take it out");
  }

  void set_none(const options::Description* option, const FileValue& value) {
    if (defaults_ == LightningDefaults::count && option && option->may_be_none())
      result_.options[option->name] = {"none", value.found.place};
  }

  void set(const options::Description& option, const Found& found) {
    if (option.name == "accelerator" && found.text == "tpu")
      throw ConfigError("MU481", found.place +
                                     ": trainer.accelerator is 'tpu', which Muster does not follow: LibTorch has no "
                                     "backend for TPUs; take a CPU or GPU, or, if the program loads one, name it: "
                                     "--accelerator tpu in place of this key");
    const bool is_default =
        options::is_default(option, found.text) || (option.name == "precision" && found.text == "32");
    if (defaults_ == LightningDefaults::ask_for_nothing && (is_default || found.text == "auto")) return;
    result_.options[option.name] = found;
  }

  /// {class_path: lightning.pytorch.strategies.FSDPStrategy, init_args: {...}}
  void take_strategy() {
    const auto path = of_strategy_.find("class_path");
    if (path == of_strategy_.end()) return;
    const auto& [text, place, is_list] = path->second;
    const auto name = text.substr(text.rfind('.') + 1);
    result_.options["strategy"] = {name, place};
    const bool shards = name.find("FSDP") != std::string::npos;
    RawOptions fields;
    for (const auto& [key, found] : of_strategy_) {
      const auto argument = key.substr(key.rfind('.') + 1);
      if (key == "class_path" || !key.starts_with("init_args.")) continue;
      if (key == "init_args.timeout") result_.options["timeout"] = found;
      else if (key.starts_with("init_args.timeout.")) add_part(key.substr(18), found, times_["timeout"]);
      else if (shards) fields[argument] = {found.text, found.place + ": " + argument, found.is_list};
      else if (options::find_option(known_, "ddp." + argument)) result_.options["ddp." + argument] = found;
      else name_once(result_.without_effect, "trainer.strategy." + argument);
    }
    for (auto& [field, found] : strategy::own_sharding_fields(fields)) result_.options["fsdp." + field] = found;
  }

  LightningDefaults defaults_;
  const std::vector<options::Description>& known_;
  RawOptions of_strategy_, times_;
  LightningRequest result_;
};

}  // namespace

bool is_subcommand(std::string_view word) { return std::ranges::find(kSubcommands, word) != std::end(kSubcommands); }

const options::Description* trainer_argument(const std::vector<options::Description>& known,
                                             const std::string& argument) {
  if (const auto* option = options::find_option(known, "trainer." + argument)) return option;
  if (argument == "callbacks") return nullptr;
  return options::find_option(known, argument);
}

LightningRequest translate_lightning(const std::vector<FileValue>& values,
                                     const std::vector<options::Description>& known, LightningDefaults defaults) {
  return LightningTranslator(known, defaults).translate(values);
}

}  // namespace muster::trainer
