#pragma once

#include <functional>
#include <string>
#include <vector>

/// Options of a program's own, read from text and written as text.
namespace muster::trainer {

/// One field of a plain struct, which outlives it.
struct OptionField {
  std::string name;  ///< "rate"; of a struct within, "sizes.in"
  std::string type;  ///< "whole number"
  bool is_list = false;
  bool is_switch = false;    ///< a bool: its flag needs no value
  bool may_be_none = false;  ///< "none" and "null" leave it unset
  std::function<std::string(const std::string&)> read =
      {};  ///< into the struct; "", or for invalid text what is wanted
  std::function<std::string()> write = {};
};

/// A list in one text: as options_list.h has it, or so in brackets.
std::string read_items(const std::string& text, std::vector<std::string>& items);
std::string write_items(const std::vector<std::string>& items);

}  // namespace muster::trainer
