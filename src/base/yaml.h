#pragma once  // for other rooms

#include "muster/base/detail/options.h"

/// YAML files, apart from options::File, whose functions are in yaml.cpp too.
namespace muster::options {

/// What a key of a file holds: nothing (null, [] or {}), one value, a list of them, or a list of other things.
enum class ValueForm { none, plain, list, nested };

/// One value of a file; the key of `outer: {inner: 1}` is "outer.inner". The text of ValueForm::nested is "".
struct FileValue {
  std::string key;
  Found found;
  ValueForm form = ValueForm::plain;
};

/// The text of a file or a pipe. Reading a pipe consumes it.
/// Throws: ConfigError (MU004) if it cannot be read, or if nobody writes to the pipe.
std::string read_text(const std::string& path);

/// All values of a YAML or JSON file, in file order. For files of other tools, whose form options::File would refuse.
/// Throws: ConfigError (MU004) with file and line if the file cannot be read, has no keys, has a duplicate key, or is
/// not YAML.
std::vector<FileValue> read_file_values(const std::string& path);
/// As read_file_values(), from text in memory; `name` replaces the file's name in messages.
std::vector<FileValue> parse_file_values(const std::string& text, const std::string& name);

/// The text as a value of a YAML file, quoted where a reader would take it for something else. Booleans and numbers
/// stay as they are.
std::string yaml_text(const std::string& text);

}  // namespace muster::options
