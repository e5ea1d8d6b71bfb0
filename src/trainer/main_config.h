#pragma once

#include <string>
#include <vector>

namespace muster::trainer {

/// A line of a configuration file: "trainer.max_epochs" is the key max_epochs of section trainer.
struct ConfigLine {
  std::string key;
  std::string text;
  bool is_list = false;
  bool may_be_none = false;  ///< the text "none" means null
};

/// The file with these lines. Requires: lines of one section are adjacent.
std::string config_text(const std::vector<ConfigLine>& lines);

}  // namespace muster::trainer
