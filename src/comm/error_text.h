#pragma once

#include <string>
#include <string_view>

namespace muster::comm {

/// Shortens the message of an error that another library threw, for one of Muster's messages: keeps the first line,
/// removes the source location in front, and cuts a line longer than `limit` after a word.
std::string short_error_text(std::string_view thrown, std::size_t limit = 300);

/// The first sentence of short_error_text(), without its full stop.
std::string first_sentence(std::string_view thrown);

struct IdAndText {
  std::string id, text;
};
/// Splits an error's message into id and text. A message without an id gets `otherwise`.
IdAndText split_message(std::string_view message, std::string_view otherwise);

}  // namespace muster::comm
