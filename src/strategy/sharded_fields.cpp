#include "strategy/sharded_fields.h"

#include <array>

#include "muster/strategy/detail/resolve.h"

namespace muster {

template <>
struct options::Value<parallel::ShardStage> {
  static constexpr std::array<const char*, 4> kWords{"none", "optimizer", "gradients", "full"};
  static std::string read(const std::string& text, parallel::ShardStage& value) {
    for (size_t i = 0; i < kWords.size(); ++i)
      if (text == kWords[i]) {
        value = static_cast<parallel::ShardStage>(i);
        return "";
      }
    return "none, optimizer, gradients or full";
  }
  static std::string write(const parallel::ShardStage& value) { return kWords.at(static_cast<size_t>(value)); }
};

template <>
struct options::Value<parallel::ReshardAfterForward> {
  static std::string read(const std::string& text, parallel::ReshardAfterForward& value) {
    bool frees = true;
    int ranks = 0;
    if (Value<bool>::read(text, frees).empty()) value = frees;
    else if (Value<int>::read(text, ranks).empty() && ranks > 1) value = ranks;
    else return "true, false or a number of ranks";
    return "";
  }
  static std::string write(const parallel::ReshardAfterForward& value) {
    return value.ranks() > 1 ? std::to_string(value.ranks()) : Value<bool>::write(static_cast<bool>(value));
  }
};

namespace strategy {
namespace {

template <class T>
ShardedField field(std::string name, T parallel::ShardedOptions::*member, std::string help, std::string unit = {}) {
  const auto option = options::option(std::move(name), member, {.help = std::move(help), .unit = std::move(unit)});
  return {option.description, option.read,
          [member](const parallel::ShardedOptions& values) { return options::Value<T>::write(values.*member); }};
}

}  // namespace

const std::vector<ShardedField>& sharded_fields() {
  using Options = parallel::ShardedOptions;
  static const std::vector<ShardedField> fields{
      field("auto_wrap", &Options::auto_wrap,
            "where nothing else draws boundaries, make units of the repeated blocks and of layers as large as one"),
      field("buffer_dtype", &Options::buffer_dtype, "dtype in which floating buffers are used"),
      field("cast_forward_inputs", &Options::cast_forward_inputs,
            "with param_dtype: floating inputs of the model are converted into it"),
      field("ignored_modules", &Options::ignored_modules, "submodules that stay whole, by name or regular expression"),
      field("limit_gathered_mb", &Options::limit_gathered_mb, "gather ahead as long as no more than this is gathered",
            "MiB"),
      field("output_dtype", &Options::output_dtype, "dtype that floating outputs of the model are converted into"),
      field("param_dtype", &Options::param_dtype, "dtype in which parameters are gathered and used"),
      field("predivide_factor", &Options::predivide_factor, "what gradients are divided by before they are summed"),
      field("reduce_dtype", &Options::reduce_dtype, "dtype in which gradients are summed"),
      field("replicas", &Options::replicas, "how many shard groups there must be; 0: as many as the ranks make"),
      field("reshard_after_forward", &Options::reshard_after_forward,
            "free parameters after forward and gather them again in backward; a number: from so many neighbours, which "
            "keep them meanwhile"),
      field("shard_group_size", &Options::shard_group_size,
            "cut over groups of so many ranks; -1: those of a node, 0: all"),
      field("stage", &Options::stage, "what is cut: none, optimizer, gradients or full"),
      field("unit_classes", &Options::unit_classes, "submodules of these classes are units"),
      field("unit_min_elements", &Options::unit_min_elements, "submodules of at least so many elements are units"),
      field("unit_names", &Options::unit_names, "these submodules are units, by name or regular expression"),
  };
  return fields;
}

std::vector<options::Description> sharded_option_descriptions() {
  std::vector<options::Description> all;
  for (const auto& one : sharded_fields()) all.push_back(one.description);
  return all;
}

}  // namespace strategy
}  // namespace muster
