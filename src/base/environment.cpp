#include "muster/base/environment.h"

#include <unistd.h>

namespace muster {

Environment Environment::of_process() {
  Environment result;
  for (char** line = environ; line && *line; ++line) {
    std::string_view text(*line);
    size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      result.set(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
  }
  return result;
}

std::optional<std::string> Environment::find(std::string_view name) const {
  auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

void Environment::unset(std::string_view name) {
  auto found = variables_.find(name);
  if (found != variables_.end()) variables_.erase(found);
}

std::vector<std::string> Environment::lines() const {
  std::vector<std::string> result;
  result.reserve(variables_.size());
  for (const auto& [name, value] : variables_) result.push_back(name + "=" + value);
  return result;
}

}  // namespace muster
