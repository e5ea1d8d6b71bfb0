#pragma once

#include <optional>
#include <string>
#include <vector>

namespace muster::trainer {

/// A flag on the command line: --model.lr 0.1.
struct LineFlag {
  std::string name;                 ///< name with underscores and without dashes: "model.lr"
  std::string place;                ///< place as written: "flag --model.lr"
  std::optional<std::string> text;  ///< value; unset if there is none
};

/// The arguments of a program with subcommands, in order.
struct MainLine {
  std::string command = {};  ///< subcommand such as "fit"; empty if there is none
  std::vector<std::string> config = {};
  std::vector<LineFlag> flags = {};
  bool help = false;
  bool print_config = false;
  std::vector<std::string> problems = {};  ///< complete sentences about what is wrong
};

/// Splits the words after the program's name. A flag takes the next word as its value unless that word begins with two
/// dashes, so -1 is a value.
MainLine split_line(const std::vector<std::string>& words);

}  // namespace muster::trainer
