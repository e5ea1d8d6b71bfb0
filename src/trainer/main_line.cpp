#include "main_line.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace muster::trainer {
namespace {

bool is_flag(const std::string& word) { return word.starts_with("--") || word == "-c" || word == "-h"; }

std::string name_of(const std::string& spelled) {
  if (spelled == "-c") return "config";
  if (spelled == "-h") return "help";
  auto name = spelled.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class LineReader {
 public:
  explicit LineReader(const std::vector<std::string>& words) : words_(words) {}

  MainLine read() {
    while (at_ < words_.size()) take(words_[at_++]);
    return std::move(line_);
  }

 private:
  void take(const std::string& word) {
    if (!is_flag(word)) return take_plain(word);
    const auto sign = word.find('=');
    const auto spelled = word.substr(0, sign);
    LineFlag flag{name_of(spelled), "flag " + spelled, {}};
    const bool stands_alone = flag.name == "help" || flag.name == "print_config";
    if (sign != std::string::npos) flag.text = word.substr(sign + 1);
    else if (!stands_alone && at_ < words_.size() && !is_flag(words_[at_])) flag.text = words_[at_++];
    if (stands_alone && flag.text) return refuse(flag.place + " takes no value, and has '" + *flag.text + "'");
    if (flag.name == "help") line_.help = true;
    else if (flag.name == "print_config") line_.print_config = true;
    else if (flag.name == "config") take_config(flag);
    else line_.flags.push_back(std::move(flag));
  }

  void take_config(const LineFlag& flag) {
    if (flag.text && !flag.text->empty()) line_.config.push_back(*flag.text);
    else refuse(flag.place + " lacks the name of a file behind it");
  }

  void take_plain(const std::string& word) {
    if (word.starts_with('-')) refuse("there is no flag '" + word + "'; flags begin with two dashes");
    else if (line_.command.empty()) line_.command = word;
    else refuse("'" + word + "' stands where a flag such as --config is expected, behind " + line_.command);
  }

  void refuse(std::string problem) { line_.problems.push_back(std::move(problem)); }

  MainLine line_;
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

}  // namespace

MainLine split_line(const std::vector<std::string>& words) { return LineReader(words).read(); }

}  // namespace muster::trainer
