#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster {

/// Environment variables as a value, so that functions that read them are pure.
/// A variable set to the empty string counts as not set.
class Environment {
 public:
  Environment() = default;
  Environment(std::initializer_list<std::pair<const std::string, std::string>> variables) : variables_(variables) {}
  /// A copy of the variables of this process.
  /// Thread safety: no other thread may change the environment during the call.
  static Environment of_process();

  std::optional<std::string> find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name).has_value(); }
  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  void unset(std::string_view name);
  /// "NAME=value" for each variable, the form that execve takes.
  std::vector<std::string> lines() const;
  const std::map<std::string, std::string, std::less<>>& variables() const& noexcept { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

}  // namespace muster
