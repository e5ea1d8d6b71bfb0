#pragma once

#include <optional>
#include <string>
#include <vector>

namespace muster::trainer {

/// A flag of a line: --model.lr 0.1.
struct LineFlag {
  std::string name;                 ///< with underscores, without dashes: "model.lr"
  std::string place;                ///< as it was written: "flag --model.lr"
  std::optional<std::string> text;  ///< unset: no value stands there
};

/// The words of a program with subcommands, in order.
struct MainLine {
  std::string command = {};  ///< "fit"; empty: none stands there
  std::vector<std::string> config = {};
  std::vector<LineFlag> flags = {};
  bool help = false;
  bool print_config = false;
  std::vector<std::string> problems = {};  ///< each a sentence
};

/// Splits the words after the program's name. A flag takes the next word as its value unless that begins with two
/// dashes, so -1 is a value.
MainLine split_line(const std::vector<std::string>& words);

}  // namespace muster::trainer
