#pragma once

#include <string>
#include <string_view>

namespace muster::dist {

/// What a library threw, for a message of ours: its first line, without the place in its source that stands before it; what is longer
/// than `limit` is cut after a word.
std::string plain_words(std::string_view thrown, std::size_t limit = 300);

/// Only the first sentence of that, without its full stop.
std::string first_sentence(std::string_view thrown);

}  // namespace muster::dist
