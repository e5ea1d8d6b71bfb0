#include "muster/trainer/detail/option_field.h"

#include "muster/base/detail/options.h"

namespace muster::trainer {

std::string read_items(const std::string& text, std::vector<std::string>& items) {
  const bool in_brackets = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  return options::Value<std::vector<std::string>>::read(in_brackets ? text.substr(1, text.size() - 2) : text, items);
}

std::string write_items(const std::vector<std::string>& items) {
  return options::Value<std::vector<std::string>>::write(items);
}

}  // namespace muster::trainer
