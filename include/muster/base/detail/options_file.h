#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace muster::options {

/// A value as text, with its place: "flag --log-dir", "variable MUSTER_LOG_DIR", "run.yaml line 3".
struct Found {
  std::string text;
  std::string place;
  bool is_list = false;  ///< a list in the file
};

/// Values by the name of their option.
using RawOptions = std::map<std::string, Found>;

/// A YAML file of options: keys with plain values, lists of them, or sections of such keys. Within a section,
/// `outer: {inner: 1}` is the key "outer.inner". A list becomes one text (see options_list.h), which ends with a comma
/// if the list has one item.
class File {
 public:
  File() = default;
  /// `only`: the section to read, with all other keys in outside(); empty: reads the whole file.
  /// Throws: ConfigError (MU004), naming file and line, if the file cannot be read or does not have that form.
  static File load(const std::string& path, const std::string& only = "");
  /// Reads the options from text; `name` replaces the file's name in messages.
  static File parse(const std::string& text, const std::string& name, const std::string& only = "");

  /// The values of one section ("" for the top), by key.
  const RawOptions& section(const std::string& name) const;
  std::vector<std::string> sections() const;
  /// The top-level keys that were not read, with their places and empty texts.
  const RawOptions& outside() const noexcept { return outside_; }
  /// Returns a copy in which `change` has changed one section.
  File changed(const std::string& section, const std::function<void(RawOptions&)>& change) const;

 private:
  std::map<std::string, RawOptions> sections_;
  RawOptions outside_;
};

}  // namespace muster::options
