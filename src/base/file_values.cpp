#include "base/file_values.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/descriptor.h"
#include "muster/base/error.h"
#include "yaml_document.h"

namespace muster::options {
namespace {

ValueForm form_of(const YAML::Node& node) {
  if (node.IsNull() || (!node.IsScalar() && node.size() == 0)) return ValueForm::none;
  if (node.IsScalar()) return ValueForm::plain;
  return std::all_of(node.begin(), node.end(), [](const auto& item) { return item.IsScalar(); }) ? ValueForm::list
                                                                                                 : ValueForm::nested;
}

struct Reader {
  const std::string& file;
  std::vector<FileValue> values;
  std::set<std::string> seen;

  void read(const YAML::Node& node, const std::string& prefix, int depth) {
    for (const auto& entry : node) {
      const auto where = place_of(file, entry.first.Mark());
      if (!entry.first.IsScalar()) refuse_form(where, "a key must be a word");
      const auto key = prefix + entry.first.Scalar();
      if (!seen.insert(key).second) refuse_form(where, "'" + key + "' stands there twice");
      if (entry.second.IsMap() && depth == kDeepest) refuse_form(where, "sections are nested too deep");
      if (entry.second.IsMap() && entry.second.size() > 0) {
        read(entry.second, key + ".", depth + 1);
        continue;
      }
      const auto form = form_of(entry.second);
      const bool has_text = form == ValueForm::plain || form == ValueForm::list;
      values.push_back({key, {has_text ? read_value(entry.second, where) : "", where, form == ValueForm::list}, form});
    }
  }
};

constexpr int kMostSilence = 60000;  // longest wait for more from a pipe that has a writer, in milliseconds

[[noreturn]] void refuse_pipe(const std::string& path, const std::string& why) {
  throw ConfigError("MU004",
                    "the option file '" + path + "' is a pipe " + why + "; start its writer first, or name a file");
}

}  // namespace

std::string read_text(const std::string& path) {
  // Non-blocking: otherwise open() would wait without limit for a named pipe that has no writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  char bytes[1 << 16];
  for (;;) {
    const auto size = ::read(file.get(), bytes, sizeof bytes);
    pollfd more{file.get(), POLLIN, 0};
    if (size > 0) text.append(bytes, static_cast<size_t>(size));
    else if (size == 0) break;
    else if (errno == EAGAIN && poll(&more, 1, kMostSilence) == 0) refuse_pipe(path, "whose writer writes nothing");
    else if (errno != EAGAIN && errno != EINTR)
      throw ConfigError("MU004", "cannot read the option file '" + path + "'; check its path and permissions");
  }
  struct stat status {};
  if (text.empty() && fstat(file.get(), &status) == 0 && S_ISFIFO(status.st_mode))
    refuse_pipe(path, "to which nobody writes");
  return text;
}

std::vector<FileValue> read_file_values(const std::string& path) { return parse_file_values(read_text(path), path); }

std::vector<FileValue> parse_file_values(const std::string& text, const std::string& name) {
  Reader reader{name, {}, {}};
  try {
    reader.read(read_document(text, name), "", 1);
  } catch (const YAML::Exception& error) {
    throw ConfigError("MU004", place_of(name, error.mark) + ": no YAML: " + error.msg);
  }
  return std::move(reader.values);
}

}  // namespace muster::options
