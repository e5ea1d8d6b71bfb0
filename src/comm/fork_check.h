#pragma once

#include <string_view>

namespace muster::comm {

/// Whether this process is the one in which the object was made, and not a fork of it: there, threads, sockets and
/// mappings of the other one are missing, and waiting for them never ends. Thread-safe.
class ForkCheck {
 public:
  ForkCheck() noexcept : forks_(forks()) {}
  bool is_forked() const noexcept { return forks_ != forks(); }
  /// `what` and `name` say what is used: "group ", "world". Throws: CommError (MU571) in a fork.
  void require_same_process(const char* what, std::string_view name = {}) const {
    if (is_forked()) refuse(what, name);
  }

 private:
  static int forks() noexcept;
  [[noreturn]] static void refuse(const char* what, std::string_view name);

  int forks_;
};

}  // namespace muster::comm
