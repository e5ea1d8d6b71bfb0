#include "main_config.h"

#include <algorithm>
#include <cstddef>

#include "base/yaml_text.h"
#include "muster/trainer/detail/option_field.h"

namespace muster::trainer {
namespace {

std::vector<std::string> parts_of(const std::string& key) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = key.find('.', begin);
    parts.push_back(key.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

std::string value_of(const ConfigLine& line) {
  if (line.may_be_none && line.text == "none") return "null";
  if (!line.is_list) return options::yaml_text(line.text);
  std::vector<std::string> items;
  read_items(line.text, items);
  // Only the text form keeps an item that contains a comma in one piece.
  if (std::any_of(items.begin(), items.end(), [](const auto& item) { return item.find(',') != std::string::npos; }))
    return options::yaml_text(line.text);
  std::string result;
  for (const auto& item : items) result += (result.empty() ? "" : ", ") + options::yaml_text(item);
  return "[" + result + "]";
}

}  // namespace

std::string config_text(const std::vector<ConfigLine>& lines) {
  std::string text;
  std::vector<std::string> open;
  for (const auto& line : lines) {
    auto parts = parts_of(line.key);
    const auto name = parts.back();
    parts.pop_back();
    const auto same = static_cast<std::size_t>(
        std::mismatch(open.begin(), open.end(), parts.begin(), parts.end()).first - open.begin());
    for (auto depth = same; depth < parts.size(); ++depth) text += std::string(2 * depth, ' ') + parts[depth] + ":\n";
    open = parts;
    text += std::string(2 * parts.size(), ' ') + name + ": " + value_of(line) + "\n";
  }
  return text;
}

}  // namespace muster::trainer
