#pragma once

#include <functional>
#include <string>
#include <vector>

namespace muster::cli {

/// Says what is wrong with an answer; "" if nothing is.
using AnswerCheck = std::function<std::string(const std::string&)>;

/// Asks questions on stdout and reads the answers from stdin. On a terminal a choice is made with the arrow keys; where
/// stdin or stdout is none, or TERM is "dumb", choices are numbered. A wrong answer is asked for again.
/// Throws: UsageError (MU485) if the input ends before the answer.
class Questions {
 public:
  Questions();
  /// The index of the choice.
  size_t choose(const std::string& question, const std::vector<std::string>& choices, size_t preset = 0) const;
  /// A line, or `preset` for an empty one.
  std::string ask(const std::string& question, const std::string& preset, const AnswerCheck& check = {}) const;
  bool confirm(const std::string& question, bool preset) const;

 private:
  size_t choose_by_number(const std::vector<std::string>& choices, size_t preset) const;
  size_t choose_by_keys(const std::vector<std::string>& choices, size_t preset) const;
  bool has_keys_;
};

}  // namespace muster::cli
