#pragma once

#include <functional>
#include <string>
#include <vector>

/// Custom options of a program, read from text and written as text.
namespace muster::trainer {

/// One field of a plain struct, which outlives it.
struct OptionField {
  std::string name;  ///< "rate"; in a nested struct, "sizes.in"
  std::string type;  ///< "whole number"
  bool is_list = false;
  bool is_switch = false;    ///< a bool: its flag needs no value
  bool may_be_none = false;  ///< "none" and "null" leave it unset
  std::function<std::string(const std::string&)> read =
      {};  ///< reads into the struct; returns "", or for invalid text the expected form
  std::function<std::string()> write = {};
};

/// A list as one text: as options::split_items() reads it, optionally in brackets.
std::string read_items(const std::string& text, std::vector<std::string>& items);
std::string write_items(const std::vector<std::string>& items);

}  // namespace muster::trainer
