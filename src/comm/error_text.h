#pragma once

#include <string>
#include <string_view>

namespace muster::comm {

/// The message that a library threw, for one of Muster's messages: its first line, without the source location in
/// front; a line longer than `limit` is cut after a word.
std::string short_error_text(std::string_view thrown, std::size_t limit = 300);

/// Only the first sentence of that, without its full stop.
std::string first_sentence(std::string_view thrown);

struct IdAndText {
  std::string id, text;
};
/// An error's message in its two parts; one without an id gets `otherwise`.
IdAndText split_message(std::string_view message, std::string_view otherwise);

}  // namespace muster::comm
