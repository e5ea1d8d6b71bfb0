#pragma once  // for other rooms

#include "muster/base/detail/options.h"
#include "muster/launcher/options.h"

namespace muster {

/// A number or a range of nodes: "2", or "1:4".
template <>
struct options::Value<NodeRange> {
  static constexpr const char* kType = "count or range";
  static std::string read(const std::string& text, NodeRange& value);
  static std::string write(const NodeRange& value);
};

/// Describes RunOptions: the flags of `muster run`, the section `run` of an option file, and the variables.
const options::Table<RunOptions>& run_option_table();

}  // namespace muster
