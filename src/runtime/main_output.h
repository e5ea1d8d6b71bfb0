#pragma once

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
    int_type overflow(int_type character) override;
    std::streamsize xsputn(const char* text, std::streamsize count) override;
    int sync() override;

   private:
    void print_whole_lines();

    std::function<bool()> is_main_;
    std::function<void(const std::string&)> print_;
    std::string pending_;
  };

  Buffer buffer_;
};

}  // namespace muster::runtime
