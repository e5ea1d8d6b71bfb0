#include "options/strategy_request.h"

#include "base/options_text.h"
#include "base/text.h"
#include "muster/base/error.h"
#include "options/strategy_fields.h"

namespace muster::strategy {
namespace {

using options::Place;
using options::RawOptions;

RawOptions of_variables(const Environment& variables) {
  RawOptions texts;
  for (const auto& word : options::foreign_words(Place::sharding))
    if (const auto found = word.variable.empty() ? std::nullopt : variables.find(word.variable))
      texts[std::string(word.word)] = {*found, "variable " + std::string(word.variable)};
  return texts;
}

template <class Struct>
const options::Option<Struct>* field_named(const options::Table<Struct>& table, const std::string& name) {
  for (const auto& field : table.options)
    if (!field.description.code_only && field.description.is_named(name)) return &field;
  return nullptr;
}

template <class Struct>
std::vector<std::string> names_of(const options::Table<Struct>& table) {
  std::vector<std::string> names;
  for (const auto& field : table.options)
    if (!field.description.code_only) names.push_back(field.description.name);
  return names;
}

[[noreturn]] void refuse_unknown(const std::string& name, const options::Found& found) {
  auto names = names_of(sharded_table());
  for (const auto& word : options::foreign_words(Place::sharding)) names.emplace_back(word.word);
  throw ConfigError("MU196", "sharded training has no option '" + name + "', which the " + found.place + " names" +
                                 muster::known_names(name, names));
}

/// Translates other tools' words first, so that Muster's own names take precedence.
RawOptions translated(const RawOptions& texts) {
  RawOptions ours;
  // Those of fairscale that name one dtype count more than mixed_precision, which names all.
  for (const bool of_fairscale : {false, true})
    for (const auto& [name, found] : texts)
      if (const auto* word = options::find_foreign_word(Place::sharding, name);
          word && (word->tool == options::Tool::fairscale) == of_fairscale)
        take_sharding_word(*word, found, texts, ours);
  for (const auto& [name, found] : texts) {
    if (options::find_foreign_word(Place::sharding, name)) continue;
    if (!field_named(sharded_table(), name)) refuse_unknown(name, found);
    ours[name] = found;
  }
  return ours;
}

void follow(const RawOptions& texts, FSDP& options) {
  for (const auto& [name, found] : texts) options::follow(*field_named(sharded_table(), name), found, options);
}

void follow(const RawOptions& texts, DDP& options) {
  for (const auto& [name, found] : texts) {
    const auto* field = field_named(replicated_table(), name);
    if (!field)
      throw ConfigError("MU196", "replicated training has no option '" + name + "', which the " + found.place +
                                     " names" + muster::known_names(name, names_of(replicated_table())));
    options::follow(*field, found, options);
  }
}

/// The options that the name of a strategy implies.
RawOptions implied(const FSDP& options, const std::string& place) {
  RawOptions texts;
  for (const auto& field : sharded_table().options)
    if (const auto text = field.write(options); text != field.description.default_text)
      texts[field.description.name] = {text, place};
  return texts;
}

Strategy by_name(const Strategy& in_code, const StrategyRequest& request) {
  const auto& name = request.name;
  if (!name) return in_code;
  const auto requested = Strategy::parse(*name);
  if (in_code.name() == "auto") return requested;
  if (requested.name() == "auto") return in_code;
  if (in_code.name() != requested.name())
    throw ConfigError("MU171", "the program asks for '" + std::string(in_code.name()) + "' and the launcher, by the " +
                                   request.place + ", for '" + *name + "'; drop one of them");
  if (!in_code.sharding()) return in_code;
  auto options = *in_code.sharding();
  auto texts = implied(*requested.sharding(), "strategy " + *name);
  if (options.shard_group_size != 0) texts.erase("shard_group_size");  // the name asks for groups, not for a size
  follow(texts, options);
  return options;
}

/// The fields of one struct, without the prefix: "stage" for "fsdp.stage".
RawOptions fields_of(const std::string& prefix, const RawOptions& fields) {
  RawOptions texts;
  for (const auto& [name, found] : fields)
    if (name.starts_with(prefix)) texts[name.substr(prefix.size())] = found;
  return texts;
}

[[noreturn]] void refuse_fields(const RawOptions& texts, const Strategy& strategy, const char* why) {
  const auto& [name, found] = *texts.begin();
  throw ConfigError("MU171", "the launcher, by the " + found.place + ", asks for " + name + " '" + found.text +
                                 "' and the strategy is '" + std::string(strategy.name()) + "', which " + why +
                                 "; drop one of them");
}

Strategy with_replication(const Strategy& strategy, const RawOptions& texts) {
  if (texts.empty()) return strategy;
  if (strategy.sharding()) refuse_fields(texts, strategy, "has no options of replicated training");
  const auto* in_code = std::get_if<DDP>(&strategy.options());
  auto options = in_code ? *in_code : DDP();
  if (strategy.name() == "ddp_find_unused_parameters_true") options.find_unused_parameters = true;
  follow(texts, options);
  return options;
}

/// Throws: ConfigError (MU171) for a request that a custom strategy cannot follow: it has no name that a launcher
/// knows, and no options.
void refuse_custom(const Strategy& own, const StrategyRequest& request) {
  if (request.name && Strategy::parse(*request.name).name() != "auto")
    throw ConfigError("MU171", "the program has a strategy of its own, '" + std::string(own.name()) +
                                   "', and the launcher asks, by the " + request.place + ", for '" + *request.name +
                                   "'; drop one of them");
  if (!request.fields.empty()) refuse_fields(request.fields, own, "is the program's own and takes no options");
}

}  // namespace

Strategy resolve_strategy(const Strategy& in_code, const StrategyRequest& request, const Environment& variables) {
  if (in_code.custom()) {
    refuse_custom(in_code, request);
    return in_code;
  }
  auto strategy = by_name(in_code, request);
  const auto sharding = fields_of("fsdp.", request.fields);
  const bool wants_fsdp = read_bool(variables.find("ACCELERATE_USE_FSDP").value_or("")).value_or(false);
  if (strategy.name() == "auto" && (!sharding.empty() || wants_fsdp)) strategy = "fsdp";
  if (!strategy.sharding()) {
    if (!sharding.empty()) refuse_fields(sharding, strategy, "shards nothing");
    return with_replication(strategy, fields_of("ddp.", request.fields));
  }
  if (const auto replication = fields_of("ddp.", request.fields); !replication.empty())
    refuse_fields(replication, strategy, "has no options of replicated training");
  auto texts = translated(of_variables(variables));
  for (auto& [name, found] : translated(sharding)) texts[name] = found;
  auto options = *strategy.sharding();
  follow(texts, options);
  return options;
}

options::RawOptions own_sharding_fields(const options::RawOptions& fields) { return translated(fields); }

void check_launch_options(const std::string& name, const options::RawOptions& options) {
  const auto requested = name.empty() ? Strategy("auto") : Strategy::parse(name);
  // The options are checked without the name's implied options, since the program may set those, too.
  resolve_strategy(requested.sharding() ? Strategy("fsdp") : requested, {.fields = options}, {});
}

}  // namespace muster::strategy
