#include "parallel/same_model.h"

#include <sstream>

#include "muster/base/error.h"
#include "muster/comm/detail/agreement.h"

namespace muster::parallel {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string line_or_none(const std::vector<std::string>& lines, size_t i) {
  return i < lines.size() ? lines[i] : "nothing more (" + std::to_string(lines.size()) + " tensors in all)";
}

}  // namespace

std::vector<std::string> describe_tensors(const std::vector<NamedTensor>& parameters,
                                          const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const NamedTensor& named) {
    std::ostringstream line;
    line << what << ' ' << named.name << ": " << c10::toString(named.tensor.scalar_type()) << ' '
         << named.tensor.sizes() << ", strides " << named.tensor.strides()
         << (named.tensor.requires_grad() ? ", trainable" : ", no gradient");
    lines.push_back(line.str());
  };
  for (const auto& named : parameters) add("parameter", named);
  for (const auto& named : buffers) add("buffer", named);
  return lines;
}

void require_same_model(const comm::Communicator& group, const std::vector<std::string>& lines,
                        const DisagreementText& text) {
  std::string joined;
  for (const auto& line : lines) joined += line + '\n';
  const auto found =
      comm::first_difference(group.internal("comparing what the ranks have built").all_gather_bytes(joined));
  if (!found) return;
  const auto first = split(found->first), second = split(found->other);
  size_t at = 0;
  while (at < first.size() && at < second.size() && first[at] == second[at]) ++at;
  throw ConfigError("MU150", std::string(text.what) + ": rank 0 has " + line_or_none(first, at) + ", rank " +
                                 std::to_string(found->rank) + " has " + line_or_none(second, at) + "; " +
                                 std::string(text.remedy));
}

}  // namespace muster::parallel
