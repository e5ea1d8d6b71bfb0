#include "muster/base/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster::base {

std::string format_values(std::string_view text, std::initializer_list<FormatValue> values) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const auto& value : values) std::visit([&](const auto& v) { store.push_back(v); }, value);
  try {
    return fmt::vformat(fmt::string_view(text.data(), text.size()), store);
  } catch (const fmt::format_error& error) {
    throw ConfigError("MU003", "the text \"" + std::string(text) + "\" does not fit its " +
                                   std::to_string(values.size()) + " values: " + error.what());
  }
}

}  // namespace muster::base
