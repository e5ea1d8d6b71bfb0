#include "questions.h"

#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "muster/base/detail/options.h"
#include "muster/base/error.h"

namespace muster::cli {
namespace {

[[noreturn]] void refuse_end() {
  throw UsageError("MU485",
                   "the input ended before the last answer, so nothing was written; answer all questions, or "
                   "call muster config --default");
}

std::string read_line_of_input() {
  std::string line;
  for (int c = 0; (c = std::getchar()) != '\n';) {
    if (c == EOF && line.empty()) refuse_end();
    if (c == EOF) break;
    line += static_cast<char>(c);
  }
  const auto begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
}

/// During its lifetime, the terminal delivers each key at once and does not echo. Ctrl-C ends the program as usual.
class KeyMode {
 public:
  KeyMode() {
    tcgetattr(STDIN_FILENO, &before_);
    auto keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
  }
  ~KeyMode() { tcsetattr(STDIN_FILENO, TCSADRAIN, &before_); }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

 private:
  termios before_{};
};

char read_byte() {
  char byte = 0;
  if (read(STDIN_FILENO, &byte, 1) != 1) refuse_end();
  return byte;
}

enum class Key { up, down, enter, interrupt, digit, other };
struct Pressed {
  Key key = Key::other;
  size_t number = 0;
};

Pressed read_key() {
  constexpr char kEscape = '\x1b', kInterrupt = '\x03', kEnd = '\x04';
  const char byte = read_byte();
  if (byte == '\n' || byte == '\r') return {Key::enter};
  if (byte == kInterrupt || byte == kEnd) return {Key::interrupt};
  if (byte == 'k') return {Key::up};
  if (byte == 'j') return {Key::down};
  if (byte >= '0' && byte <= '9') return {Key::digit, static_cast<size_t>(byte - '0')};
  if (byte != kEscape) return {};
  const char kind = read_byte();
  const char letter = kind == '[' || kind == 'O' ? read_byte() : kind;
  return {letter == 'A' ? Key::up : letter == 'B' ? Key::down : Key::other};
}

void draw(const std::vector<std::string>& choices, size_t chosen) {
  for (size_t i = 0; i < choices.size(); ++i)
    std::printf("\r\x1b[K%s %s\n", i == chosen ? " \x1b[1m>" : "  ", (choices[i] + "\x1b[0m").c_str());
  std::fflush(stdout);
}

}  // namespace

Questions::Questions() {
  const char* terminal = std::getenv("TERM");
  has_keys_ = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && terminal && std::string_view(terminal) != "dumb";
}

size_t Questions::choose(const std::string& question, const std::vector<std::string>& choices, size_t preset) const {
  std::printf("%s\n", question.c_str());
  return has_keys_ ? choose_by_keys(choices, preset) : choose_by_number(choices, preset);
}

size_t Questions::choose_by_number(const std::vector<std::string>& choices, size_t preset) const {
  for (size_t i = 0; i < choices.size(); ++i) std::printf("  %zu  %s\n", i, choices[i].c_str());
  size_t chosen = preset;
  ask("a number, or the words", std::to_string(preset), [&](const std::string& answer) {
    int number = -1;
    if (!options::Value<int>::read(answer, number).empty())
      for (size_t i = 0; i < choices.size(); ++i)
        if (choices[i].substr(0, choices[i].find(':')) == answer) number = static_cast<int>(i);
    if (number < 0 || static_cast<size_t>(number) >= choices.size())
      return "give a number from 0 to " + std::to_string(choices.size() - 1);
    chosen = static_cast<size_t>(number);
    return std::string();
  });
  return chosen;
}

size_t Questions::choose_by_keys(const std::vector<std::string>& choices, size_t preset) const {
  std::fflush(stdout);
  const KeyMode mode;
  size_t chosen = preset;
  draw(choices, chosen);
  for (;;) {
    const auto pressed = read_key();
    if (pressed.key == Key::enter) return chosen;
    if (pressed.key == Key::interrupt) refuse_end();
    if (pressed.key == Key::up) chosen = (chosen + choices.size() - 1) % choices.size();
    if (pressed.key == Key::down) chosen = (chosen + 1) % choices.size();
    if (pressed.key == Key::digit && pressed.number < choices.size()) chosen = pressed.number;
    std::printf("\x1b[%zuA", choices.size());
    draw(choices, chosen);
  }
}

std::string Questions::ask(const std::string& question, const std::string& preset, const AnswerCheck& check) const {
  for (;;) {
    std::printf("%s%s: ", question.c_str(), preset.empty() ? "" : (" [" + preset + "]").c_str());
    std::fflush(stdout);
    auto answer = read_line_of_input();
    if (answer.empty()) answer = preset;
    const auto wrong = check ? check(answer) : std::string();
    if (wrong.empty()) return answer;
    std::printf("  '%s': %s\n", answer.c_str(), wrong.c_str());
  }
}

bool Questions::confirm(const std::string& question, bool preset) const {
  bool value = preset;
  ask(question, preset ? "yes" : "no", [&](const std::string& answer) {
    const auto wanted = options::Value<bool>::read(answer, value);
    return wanted.empty() ? "" : std::string("answer yes or no");
  });
  return value;
}

}  // namespace muster::cli
