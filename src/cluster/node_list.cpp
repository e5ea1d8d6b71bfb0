#include <charconv>

#include "base/log.h"
#include "base/trimmed.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

[[noreturn]] void refuse(std::string_view variable, std::string_view text, std::string_view wanted) {
  throw ConfigError("MU025", log::str("variable ", variable, " is '", text, "', which is not ", wanted,
                                      "; set MASTER_ADDR and LOCAL_WORLD_SIZE yourself, or report it"));
}

constexpr std::string_view kListBlanks = " \t";

bool read_digits(std::string_view text, int& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

int tasks_on_node(std::string_view text, int node, std::string_view variable) {
  constexpr std::string_view wanted = "a list such as 2(x3),1 with an entry for every node";
  int passed = 0;
  for (std::string_view rest = text; !rest.empty();) {
    size_t comma = rest.find(',');
    auto entry = trimmed(rest.substr(0, comma), kListBlanks);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    int tasks = 0, nodes = 1;
    size_t open = entry.find("(x");
    if (open != std::string_view::npos) {
      if (entry.back() != ')' || !read_digits(entry.substr(open + 2, entry.size() - open - 3), nodes))
        refuse(variable, text, wanted);
      entry = entry.substr(0, open);
    }
    if (!read_digits(entry, tasks)) refuse(variable, text, wanted);
    passed += nodes;
    if (node < passed) return tasks;
  }
  refuse(variable, text, wanted);
}

std::string first_host(std::string_view list, std::string_view variable) {
  constexpr std::string_view wanted = "a node list such as alpha[1-3,7],beta";
  auto text = trimmed(list, kListBlanks);
  std::string host;
  // A name may contain several brackets: rack[1-2]node[03-04] begins with rack1node03.
  for (size_t at = 0; at < text.size() && text[at] != ',' && text[at] != ' ';) {
    if (text[at] == ']') refuse(variable, list, wanted);
    if (text[at] != '[') {
      host += text[at++];
      continue;
    }
    size_t close = text.find(']', at);
    if (close == std::string_view::npos) refuse(variable, list, wanted);
    auto inside = trimmed(text.substr(at + 1, close - at - 1), kListBlanks);
    auto number = trimmed(inside.substr(0, inside.find_first_of(",-")), kListBlanks);
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos)
      refuse(variable, list, wanted);
    host += number;
    at = close + 1;
  }
  if (host.empty()) refuse(variable, list, wanted);
  return host;
}

}  // namespace muster::cluster
