#include "muster/strategy/detail/resolve.h"

#include <algorithm>
#include <string>

#include "muster/base/detail/listing.h"
#include "muster/base/error.h"
#include "muster/strategy/detail/launch_check.h"
#include "strategy/sharded_fields.h"

namespace muster::strategy {
namespace {

constexpr const char* kSharding = "option 'fsdp' of the launcher";

/// "a=1,b=x,y" is a: "1" and b: "x,y".
FieldTexts split_fields(const std::string& text) {
  FieldTexts texts;
  std::string name;
  for (size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto word = text.substr(begin, end - begin);
    const auto sign = word.find('=');
    begin = end + 1;
    if (sign != std::string::npos && sign > 0) {
      name = word.substr(0, sign);
      texts[name] = {word.substr(sign + 1), name + " of the " + kSharding};
    } else if (!name.empty() && sign == std::string::npos) {
      texts[name].text += "," + word;
    } else {
      throw ConfigError("MU196", "'" + word + "' in the " + kSharding + ", '" + text + "', is no name=value");
    }
  }
  return texts;
}

FieldTexts of_variables(const Environment& variables) {
  FieldTexts texts;
  for (const auto& field : foreign_fields())
    if (const auto found = field.variable.empty() ? std::nullopt : variables.find(field.variable))
      texts[std::string(field.name)] = {*found, "variable " + std::string(field.variable)};
  return texts;
}

const ShardedField* own_field(const std::string& name) {
  const auto& fields = sharded_fields();
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const ShardedField& field) { return field.description.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_unknown(const std::string& name) {
  auto known = known_ones(sharded_fields(), [](const ShardedField& field) { return field.description.name; });
  known += "; fields of Accelerate and Lightning:";
  for (const auto& field : foreign_fields()) known += " " + std::string(field.name);
  throw ConfigError(
      "MU196", "sharded training has no option '" + name + "', which the " + std::string(kSharding) + " names" + known);
}

/// Python's fields first, so that our own names take precedence.
FieldTexts translated(const FieldTexts& texts) {
  FieldTexts ours;
  for (const auto& field : foreign_fields())
    if (const auto found = texts.find(std::string(field.name)); found != texts.end())
      field.take(found->second, texts, ours);
  for (const auto& [name, found] : texts) {
    const bool python = std::any_of(foreign_fields().begin(), foreign_fields().end(),
                                    [&](const ForeignField& field) { return field.name == name; });
    if (!own_field(name) && !python) refuse_unknown(name);
    if (own_field(name) && !python) ours[name] = found;
  }
  return ours;
}

void follow(const FieldTexts& texts, FSDP& options) {
  const FSDP defaults;
  for (const auto& [name, found] : texts) {
    const auto& field = *own_field(name);
    auto requested = options;
    if (const auto wanted = field.read(requested, found.text); !wanted.empty())
      options::refuse(field.description, found, wanted);
    const auto in_code = field.write(options), asked = field.write(requested);
    if (in_code != asked && in_code != field.write(defaults))
      throw ConfigError("MU171", "the program asks for " + name + " '" + in_code + "' and the launcher, by the " +
                                     found.place + ", for '" + asked + "'; drop one of them");
    options = std::move(requested);
  }
}

/// What of the options the name of a strategy says.
FieldTexts implied(const FSDP& options, const std::string& place) {
  FieldTexts texts;
  const FSDP defaults;
  for (const auto& field : sharded_fields())
    if (const auto text = field.write(options); text != field.write(defaults))
      texts[field.description.name] = {text, place};
  return texts;
}

Strategy by_name(const Strategy& in_code, const std::optional<std::string>& name) {
  if (!name) return in_code;
  const auto requested = Strategy::parse(*name);
  if (in_code.name() == "auto") return requested;
  if (requested.name() == "auto") return in_code;
  if (in_code.name() != requested.name())
    throw ConfigError("MU171", "the program asks for '" + std::string(in_code.name()) +
                                   "' and the launcher, by the variable MUSTER_STRATEGY, for '" + *name +
                                   "'; drop one of them");
  if (!in_code.sharding()) return in_code;
  auto options = *in_code.sharding();
  auto texts = implied(*requested.sharding(), "strategy " + *name);
  if (options.shard_group_size != 0) texts.erase("shard_group_size");  // the name asks for groups, not for their size
  follow(texts, options);
  return options;
}

bool wants_fsdp(const Environment& variables) {
  const auto found = variables.find("ACCELERATE_USE_FSDP");
  return found && (*found == "true" || *found == "True" || *found == "1");
}

}  // namespace

Strategy resolve_strategy(const Strategy& in_code, const StrategyRequest& request, const Environment& variables) {
  auto strategy = by_name(in_code, request.name);
  const bool asked = request.sharding && !request.sharding->empty();
  if (strategy.name() == "auto" && (asked || wants_fsdp(variables))) strategy = "fsdp";
  if (!strategy.sharding()) {
    if (asked)
      throw ConfigError("MU171", "the " + std::string(kSharding) + " is '" + *request.sharding +
                                     "' and the strategy '" + std::string(strategy.name()) +
                                     "', which shards nothing; drop one of them");
    return strategy;
  }
  auto texts = translated(of_variables(variables));
  if (asked)
    for (auto& [name, found] : translated(split_fields(*request.sharding))) texts[name] = found;
  auto options = *strategy.sharding();
  follow(texts, options);
  return options;
}

void check_launch_options(const std::string& name, const std::string& sharding) {
  const auto requested = name.empty() ? Strategy("auto") : Strategy::parse(name);
  // The options are read by themselves: what they say beside the name's own may be what the program says, too.
  resolve_strategy(requested.sharding() ? Strategy("fsdp") : requested, {.name = {}, .sharding = sharding}, {});
}

}  // namespace muster::strategy
