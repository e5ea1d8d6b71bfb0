#include "comm/same_lines.h"

#include <cstddef>
#include <sstream>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string line_or_none(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? lines[i] : formatted("nothing more ({} in all)", lines.size());
}

}  // namespace

void require_same_lines(const Communicator& group, const std::vector<std::string>& lines,
                        const DisagreementText& text) {
  std::string joined;
  for (const auto& line : lines) joined += line + '\n';
  const auto found = first_difference(group.internal("comparing what the ranks have built").all_gather_bytes(joined));
  if (!found) return;
  const auto first = split(found->first), second = split(found->other);
  std::size_t at = 0;
  while (at < first.size() && at < second.size() && first[at] == second[at]) ++at;
  throw ConfigError("MU150", formatted("{}: rank 0 has {}, rank {} has {}; {}", text.what, line_or_none(first, at),
                                       found->rank, line_or_none(second, at), text.remedy));
}

}  // namespace muster::comm
