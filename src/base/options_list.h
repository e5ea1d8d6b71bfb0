#pragma once  // for other rooms

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Lists in one text: a,b. An item with a comma is put in double quotes, and a double quote in it is doubled:
/// "a{1,2}",b is a list of two items.
namespace muster::options {

/// The parts of `text` between commas outside quotes, trimmed, with their quotes. A quote may open at the first
/// character of an item or, with `in_pairs`, after the first '=' of an item. An unclosed quote reaches to the end.
std::vector<std::string> split_items(std::string_view text, bool in_pairs = false);

/// The item without its quotes; an unquoted item is returned unchanged. nullopt if an item starts with a quote but does
/// not end with the closing one.
std::optional<std::string> unquoted(std::string_view item);

/// The item as written in a list: quoted if needed.
std::string list_item(std::string_view item);

}  // namespace muster::options
