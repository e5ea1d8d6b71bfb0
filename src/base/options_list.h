#pragma once  // for other rooms

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Lists in one text: a,b. An item with a comma is put in double quotes, and a double quote in it is doubled:
/// "a{1,2}",b is a list of two items.
namespace muster::options {

/// The parts of `text` between commas that are outside of quotes, without the blanks around them, quotes kept. Quotes
/// begin at the first character of an item; with `in_pairs`, also after the first '=' of an item. A quote that is never
/// closed reaches to the end.
std::vector<std::string> split_items(std::string_view text, bool in_pairs = false);

/// An item without its quotes; an item that begins with no quote as it is. Nothing if what begins with a quote does not
/// end with the closing one.
std::optional<std::string> unquoted(std::string_view item);

/// The item as it stands in a list: quoted if needed.
std::string list_item(std::string_view item);

}  // namespace muster::options
