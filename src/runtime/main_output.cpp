#include "main_output.h"

#include <cstdio>

namespace muster::runtime {

MainOutput::Buffer::int_type MainOutput::Buffer::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
  const char one = traits_type::to_char_type(character);
  xsputn(&one, 1);
  return character;
}

std::streamsize MainOutput::Buffer::xsputn(const char* text, std::streamsize count) {
  pending_.append(text, static_cast<size_t>(count));
  print_whole_lines();
  return count;
}

void MainOutput::Buffer::print_whole_lines() {
  const auto end = pending_.rfind('\n');
  if (end == std::string::npos) return;
  if (is_main_()) print_(pending_.substr(0, end));
  pending_.erase(0, end + 1);
}

int MainOutput::Buffer::sync() {
  if (!pending_.empty() && is_main_()) {
    std::fputs(pending_.c_str(), stdout);
    std::fflush(stdout);
  }
  pending_.clear();
  return 0;
}

}  // namespace muster::runtime
