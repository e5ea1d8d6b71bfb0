#pragma once

#include <string>
#include <vector>

namespace muster::trainer {

/// A line of a configuration file: "trainer.max_epochs" is the key max_epochs of section trainer.
struct ConfigLine {
  std::string key;
  std::string text;
  bool is_list = false;
  bool may_be_none = false;  ///< then the text "none" is null
};

/// The file of these lines; those of one section follow one another.
std::string config_text(const std::vector<ConfigLine>& lines);

}  // namespace muster::trainer
