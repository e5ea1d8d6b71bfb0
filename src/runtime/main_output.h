#pragma once

#include <cstdio>
#include <functional>
#include <ostream>
#include <streambuf>
#include <string>
#include <utility>

namespace muster::runtime {

/// Prints the lines of a stream on the main rank and drops them elsewhere. A line is printed when it ends; an
/// incomplete one when the stream is flushed or destroyed. Thread safety: one thread at a time.
class MainOutput final : public std::ostream {
 public:
  /// `is_main` is called before each output. `print` gets lines, without the newline of the last.
  MainOutput(std::function<bool()> is_main, std::function<void(const std::string&)> print)
      : std::ostream(nullptr), buffer_(std::move(is_main), std::move(print)) {
    rdbuf(&buffer_);
  }
  ~MainOutput() override { flush(); }

 private:
  class Buffer final : public std::streambuf {
   public:
    Buffer(std::function<bool()> is_main, std::function<void(const std::string&)> print)
        : is_main_(std::move(is_main)), print_(std::move(print)) {}

   protected:
    int_type overflow(int_type character) override {
      if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
      const char one = traits_type::to_char_type(character);
      xsputn(&one, 1);
      return character;
    }
    std::streamsize xsputn(const char* text, std::streamsize count) override {
      pending_.append(text, static_cast<size_t>(count));
      print_whole_lines();
      return count;
    }
    int sync() override {
      if (!pending_.empty() && is_main_()) {
        std::fputs(pending_.c_str(), stdout);
        std::fflush(stdout);
      }
      pending_.clear();
      return 0;
    }

   private:
    void print_whole_lines() {
      const auto end = pending_.rfind('\n');
      if (end == std::string::npos) return;
      if (is_main_()) print_(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }

    std::function<bool()> is_main_;
    std::function<void(const std::string&)> print_;
    std::string pending_;
  };

  Buffer buffer_;
};

}  // namespace muster::runtime
