#include "base/options_list.h"

#include <algorithm>

#include "base/trimmed.h"

namespace muster::options {
namespace {

/// The position after the closing quote that matches the quote at `at`; npos if there is none.
size_t end_of_quotes(std::string_view text, size_t at) {
  for (++at; (at = text.find('"', at)) != std::string_view::npos; at += 2)
    if (text.substr(at + 1, 1) != "\"") return at + 1;
  return at;
}

/// The position at which a quote may open in the item that begins at `begin`.
size_t start_of_value(std::string_view text, size_t begin, bool in_pairs) {
  const auto first = text.find_first_not_of(" \t\n", begin);
  if (first == std::string_view::npos || !in_pairs || text[first] == '"') return first;
  const auto sign = text.find_first_of("=,", first);
  if (sign == std::string_view::npos || text[sign] == ',') return first;
  return text.find_first_not_of(" \t\n", sign + 1);
}

}  // namespace

std::vector<std::string> split_items(std::string_view text, bool in_pairs) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    auto from = start_of_value(text, begin, in_pairs);
    if (from != std::string_view::npos && text[from] == '"') from = end_of_quotes(text, from);
    else if (from != std::string_view::npos) from = begin;
    const auto end = from == std::string_view::npos ? text.size() : std::min(text.find(',', from), text.size());
    items.emplace_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return items;
}

std::optional<std::string> unquoted(std::string_view item) {
  if (!item.starts_with('"')) return std::string(item);
  if (end_of_quotes(item, 0) != item.size()) return {};
  std::string result;
  for (size_t at = 1; at + 1 < item.size(); ++at) {
    result += item[at];
    if (item[at] == '"') ++at;
  }
  return result;
}

std::string list_item(std::string_view item) {
  const bool as_it_is = !item.empty() && !item.starts_with('"') && item.find(',') == std::string_view::npos &&
                        trimmed(item).size() == item.size();
  if (as_it_is) return std::string(item);
  std::string result = "\"";
  for (const char c : item) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

}  // namespace muster::options
