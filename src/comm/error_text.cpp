#include "comm/error_text.h"

namespace muster::comm {
namespace {

/// Removes the location that gloo and LibTorch's sockets put in front of a message:
/// "[/build/third_party/gloo/transport/tcp/pair.cc:553] Connection closed".
std::string_view without_place(std::string_view text) {
  if (!text.starts_with('[')) return text;
  const auto end = text.find("] ");
  const auto colon = text.substr(0, end).rfind(':');
  if (end == text.npos || colon == text.npos || colon + 1 == end) return text;
  const auto line = text.substr(colon + 1, end - colon - 1);
  return line.find_first_not_of("0123456789") == line.npos ? text.substr(end + 2) : text;
}

}  // namespace

std::string short_error_text(std::string_view thrown, std::size_t limit) {
  auto text = without_place(thrown.substr(0, thrown.find('\n')));
  if (text.size() > limit) {
    text = text.substr(0, limit);
    const auto space = text.rfind(' ');
    return std::string(text.substr(0, space == text.npos ? limit : space)) + " ...";
  }
  return std::string(text);
}

std::string first_sentence(std::string_view thrown) {
  auto text = short_error_text(thrown);
  if (const auto end = text.find(". "); end != text.npos) return text.substr(0, end);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

IdAndText split_message(std::string_view message, std::string_view otherwise) {
  if (!message.starts_with("MU") || message.size() <= 7 || message.substr(5, 2) != ": ")
    return {std::string(otherwise), std::string(message)};
  return {std::string(message.substr(0, 5)), std::string(message.substr(7))};
}

}  // namespace muster::comm
