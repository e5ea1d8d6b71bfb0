#pragma once

#include <functional>
#include <string>
#include <vector>

namespace muster::cli {

/// Returns what is wrong with an answer; "" if nothing is.
using AnswerCheck = std::function<std::string(const std::string&)>;

/// Asks questions on stdout and reads the answers from stdin. On a terminal, choices are made with the arrow keys; if
/// stdin or stdout is not a terminal, or TERM is "dumb", choices are numbered. After a wrong answer the question is
/// repeated.
/// Throws: UsageError (MU485) if the input ends before the answer.
class Questions {
 public:
  Questions();
  /// Returns the index of the choice.
  size_t choose(const std::string& question, const std::vector<std::string>& choices, size_t preset = 0) const;
  /// Returns a line, or `preset` for an empty one.
  std::string ask(const std::string& question, const std::string& preset, const AnswerCheck& check = {}) const;
  bool confirm(const std::string& question, bool preset) const;

 private:
  size_t choose_by_number(const std::vector<std::string>& choices, size_t preset) const;
  size_t choose_by_keys(const std::vector<std::string>& choices, size_t preset) const;
  bool has_keys_;
};

}  // namespace muster::cli
